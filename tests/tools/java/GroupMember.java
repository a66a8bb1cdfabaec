import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group that commits what it reads until its standard input ends.
 *
 * <p>Prints {@code assigned PARTITION...} after each rebalance, {@code committed PARTITION FROM TO} for each committed
 * range (TO is exclusive), and {@code lost PARTITION} if it lost a partition with uncommitted records.
 *
 * <p>Usage: GroupMember BOOTSTRAP TOPIC GROUP PROTOCOL
 */
public final class GroupMember implements ConsumerRebalanceListener {
    private record Range(long from, long to) {}

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final Map<TopicPartition, Range> uncommitted = new HashMap<>();

    private GroupMember(KafkaConsumer<byte[], byte[]> consumer) {
        this.consumer = consumer;
    }

    public static void main(String[] args) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[2]);
        settings.put("group.protocol", args[3]);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.interval.ms", "600000");
        if (args[3].equals("classic")) {
            settings.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor");
            settings.put("session.timeout.ms", "60000");
        }
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            new GroupMember(consumer).run(args[1]);
        }
    }

    private void run(String topic) throws Exception {
        consumer.subscribe(List.of(topic), this);
        boolean leaving = false;
        while (!leaving || !uncommitted.isEmpty()) {
            leaving = System.in.available() > 0;
            if (leaving) {
                consumer.pause(consumer.assignment());
            }
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                TopicPartition place = new TopicPartition(record.topic(), record.partition());
                Range range = uncommitted.getOrDefault(place, new Range(record.offset(), record.offset()));
                if (range.to() != record.offset()) {
                    throw new IllegalStateException(place + ": " + record.offset() + " follows " + range);
                }
                uncommitted.put(place, new Range(range.from(), record.offset() + 1));
            }
            try {
                commit(uncommitted);
            } catch (RebalanceInProgressException rebalance) {
                // The member keeps its partitions; the next poll completes the rebalance.
            }
        }
        System.out.println("leaving");
    }

    private void commit(Map<TopicPartition, Range> ranges) {
        if (ranges.isEmpty()) {
            return;
        }
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        ranges.forEach((place, range) -> offsets.put(place, new OffsetAndMetadata(range.to())));
        consumer.commitSync(offsets);
        ranges.forEach((place, range) ->
            System.out.println("committed " + place.partition() + " " + range.from() + " " + range.to()));
        uncommitted.keySet().removeAll(List.copyOf(ranges.keySet()));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        Map<TopicPartition, Range> revoked = new HashMap<>(uncommitted);
        revoked.keySet().retainAll(partitions);
        commit(revoked);
        printAssignment(partitions);
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        for (TopicPartition place : partitions) {
            if (uncommitted.remove(place) != null) {
                System.out.println("lost " + place.partition());
            }
        }
        printAssignment(partitions);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        printAssignment(List.of());
    }

    private void printAssignment(Collection<TopicPartition> without) {
        StringBuilder line = new StringBuilder("assigned");
        for (TopicPartition place : consumer.assignment()) {
            if (!without.contains(place)) {
                line.append(' ').append(place.partition());
            }
        }
        System.out.println(line);
    }
}
