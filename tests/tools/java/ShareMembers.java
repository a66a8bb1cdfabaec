import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ThreadLocalRandom;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Share consumers that report all they do. They release the records at offsets that are multiples of the last argument, and some others by chance, and accept
 * the rest.
 *
 * <p>Arguments: bootstrap, topic, group, consumers, multiple. Each line of standard output is a word, System.nanoTime() and {@code OFFSET:DELIVERY_COUNT} of
 * records: {@code took} before they are acknowledged; {@code accepted} after the broker confirmed them; {@code doubtful} if it did not.
 */
public final class ShareMembers {
    private static final int RELEASED_PER_CENT = 5;

    private ShareMembers() {}

    public static void main(String[] words) throws Exception {
        var threads = new ArrayList<Thread>();
        for (int number = 0; number < Integer.parseInt(words[3]); number++) {
            threads.add(new Thread(() -> consume(words)));
        }
        for (var thread : threads) {
            thread.start();
        }
        while (System.in.read() >= 0) {}
        System.exit(0);
    }

    private static void consume(String[] words) {
        var settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("group.id", words[2]);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", "20");
        var multiple = Long.parseLong(words[4]);
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaShareConsumer<>(settings, bytes, bytes)) {
            consumer.subscribe(List.of(words[1]));
            while (true) {
                step(consumer, multiple);
            }
        }
    }

    private static void step(KafkaShareConsumer<byte[], byte[]> consumer, long multiple) {
        var taken = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        try {
            consumer.poll(Duration.ofMillis(200)).forEach(taken::add);
        } catch (Exception error) {
            System.err.println("poll: " + error);
        }
        if (taken.isEmpty()) {
            return;
        }
        report("took", taken);
        var accepted = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        for (var record : taken) {
            var isReleased = record.offset() % multiple == 0 || ThreadLocalRandom.current().nextInt(100) < RELEASED_PER_CENT;
            consumer.acknowledge(record, isReleased ? AcknowledgeType.RELEASE : AcknowledgeType.ACCEPT);
            if (!isReleased) {
                accepted.add(record);
            }
        }
        report(isCommitted(consumer) ? "accepted" : "doubtful", accepted);
    }

    private static boolean isCommitted(KafkaShareConsumer<byte[], byte[]> consumer) {
        try {
            var results = consumer.commitSync();
            results.values().forEach(error -> error.ifPresent(reason -> System.err.println("commit: " + reason)));
            return !results.isEmpty() && results.values().stream().noneMatch(error -> error.isPresent());
        } catch (Exception error) {
            System.err.println("commit: " + error);
            return false;
        }
    }

    private static void report(String what, List<ConsumerRecord<byte[], byte[]>> records) {
        var line = new StringBuilder(what).append(' ').append(System.nanoTime());
        for (var record : records) {
            line.append(' ').append(record.offset()).append(':').append(record.deliveryCount().get());
        }
        System.out.println(line);
    }
}
