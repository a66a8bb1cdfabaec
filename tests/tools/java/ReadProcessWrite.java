import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies records from one topic to another in transactions, step by step: each line of stdin is a step, and after it one line appears on stdout,
 * {@code done STEP} or {@code failed STEP EXCEPTION}.
 *
 * <p>Words: bootstrap input output group session-timeout-ms transactional-id. Steps: {@code init}; {@code begin N} begins a transaction and writes the next N
 * records; {@code offsets} adds the offsets behind them; {@code commit}; {@code abort}, after which it reads the same records again.
 */
public final class ReadProcessWrite {
    private final String output;
    private final String group;
    private final KafkaConsumer<String, String> consumer;
    private final KafkaProducer<String, String> producer;
    private final Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
    private final Map<TopicPartition, Long> starts = new HashMap<>();
    private Object membership;

    private ReadProcessWrite(String[] words) {
        output = words[2];
        group = words[3];
        var settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("isolation.level", "read_committed");
        settings.put("max.poll.records", "1");
        settings.put("session.timeout.ms", words[4]);
        settings.put("heartbeat.interval.ms", "1000");
        consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(Collections.singletonList(words[1]));
        settings = new Properties();
        settings.put("bootstrap.servers", words[0]);
        settings.put("transactional.id", words[5]);
        settings.put("transaction.timeout.ms", "600000");
        settings.put("max.block.ms", "300000");
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    public static void main(String[] words) throws Exception {
        var copier = new ReadProcessWrite(words);
        var steps = new BufferedReader(new InputStreamReader(System.in));
        for (var step = steps.readLine(); step != null; step = steps.readLine()) {
            try {
                copier.take(step.split(" "));
                System.out.println("done " + step);
            } catch (Exception error) {
                System.out.println("failed " + step + " " + error.getClass().getSimpleName());
                error.printStackTrace();
            }
        }
        System.exit(0);
    }

    private void take(String[] step) throws Exception {
        switch (step[0]) {
            case "init":
                producer.initTransactions();
                break;
            case "begin":
                begin(Integer.parseInt(step[1]));
                break;
            case "offsets":
                addOffsets();
                break;
            case "commit":
                producer.commitTransaction();
                break;
            case "abort":
                producer.abortTransaction();
                starts.forEach(consumer::seek);
                break;
            default:
                throw new IllegalArgumentException(step[0]);
        }
    }

    private void begin(int count) throws Exception {
        producer.beginTransaction();
        offsets.clear();
        starts.clear();
        for (int read = 0; read < count; ) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                producer.send(new ProducerRecord<>(output, record.partition(), record.key(), record.value()));
                var source = new TopicPartition(record.topic(), record.partition());
                starts.putIfAbsent(source, record.offset());
                offsets.put(source, new OffsetAndMetadata(record.offset() + 1));
                read++;
            }
        }
        producer.flush();
        membership = membership();
    }

    /** The consumer's group metadata, which clients have since 2.5; before, the name of the group. */
    private Object membership() throws Exception {
        try {
            return KafkaConsumer.class.getMethod("groupMetadata").invoke(consumer);
        } catch (NoSuchMethodException old) {
            return group;
        }
    }

    private void addOffsets() throws Exception {
        Class<?> type = membership == group ? String.class : KafkaConsumer.class.getMethod("groupMetadata").getReturnType();
        try {
            KafkaProducer.class.getMethod("sendOffsetsToTransaction", Map.class, type).invoke(producer, offsets, membership);
        } catch (java.lang.reflect.InvocationTargetException error) {
            throw (Exception) error.getCause();
        }
    }
}
