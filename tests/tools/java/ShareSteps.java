import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * A share consumer with explicit acknowledgement, step by step: each line of stdin is a step, and after it one line appears on stdout, {@code done STEP
 * RESULT} or {@code failed STEP EXCEPTION}.
 *
 * <p>Words: bootstrap topic group. Steps: {@code poll N} reads until it holds N records, and returns {@code PARTITION-OFFSET:DELIVERY_COUNT} of each; {@code
 * accept OFFSET...}, {@code release OFFSET...} and {@code reject OFFSET...} acknowledge held records of partition 0; {@code commit} sends the
 * acknowledgements; {@code idle MILLISECONDS} polls and returns the records that arrive. The client refuses a poll while records are held without an
 * acknowledgement, so the program acknowledges or drops all of them first.
 */
public final class ShareSteps {
    private final KafkaShareConsumer<String, String> consumer;
    private final Map<Long, ConsumerRecord<String, String>> held = new TreeMap<>();

    private ShareSteps(String[] words) {
        var settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("group.id", words[2]);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("default.api.timeout.ms", "300000");
        consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(words[1]));
    }

    public static void main(String[] words) throws Exception {
        var client = new ShareSteps(words);
        var steps = new BufferedReader(new InputStreamReader(System.in));
        for (var step = steps.readLine(); step != null; step = steps.readLine()) {
            try {
                var result = client.take(step.split(" "));
                System.out.println(("done " + step + " " + result).trim());
            } catch (Exception error) {
                System.out.println("failed " + step + " " + error.getClass().getSimpleName());
                error.printStackTrace();
            }
        }
        client.consumer.close(Duration.ofSeconds(30));
        System.exit(0);
    }

    private String take(String[] step) {
        switch (step[0]) {
            case "poll":
                return poll(Integer.parseInt(step[1]));
            case "idle":
                return idle(Long.parseLong(step[1]));
            case "accept":
                return acknowledge(step, AcknowledgeType.ACCEPT);
            case "release":
                return acknowledge(step, AcknowledgeType.RELEASE);
            case "reject":
                return acknowledge(step, AcknowledgeType.REJECT);
            case "commit":
                return commit();
            default:
                throw new IllegalArgumentException(step[0]);
        }
    }

    private String poll(int count) {
        var found = new ArrayList<String>();
        var end = System.nanoTime() + Duration.ofMinutes(5).toNanos();
        while (found.size() < count) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("only " + found);
            }
            found.addAll(hold(Duration.ofMillis(500)));
        }
        return String.join(" ", found);
    }

    private String idle(long durationMs) {
        var found = new ArrayList<String>();
        for (var end = System.nanoTime() + Duration.ofMillis(durationMs).toNanos(); System.nanoTime() < end; ) {
            found.addAll(hold(Duration.ofMillis(200)));
        }
        return String.join(" ", found);
    }

    private List<String> hold(Duration timeout) {
        var found = new ArrayList<String>();
        for (ConsumerRecord<String, String> record : consumer.poll(timeout)) {
            held.put(record.offset(), record);
            found.add(record.partition() + "-" + record.offset() + ":" + record.deliveryCount().get());
        }
        return found;
    }

    private String acknowledge(String[] step, AcknowledgeType type) {
        for (int at = 1; at < step.length; at++) {
            consumer.acknowledge(held.remove(Long.parseLong(step[at])), type);
        }
        return "";
    }

    private String commit() {
        var failed = new ArrayList<String>();
        for (Map.Entry<TopicIdPartition, Optional<KafkaException>> one : consumer.commitSync().entrySet()) {
            one.getValue().ifPresent(error -> failed.add(one.getKey().partition() + ":" + error.getClass().getSimpleName()));
        }
        return String.join(" ", failed);
    }
}
