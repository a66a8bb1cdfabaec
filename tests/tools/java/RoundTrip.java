import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.Collections;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Writes records that a reader can check, and prints what it reads, with nothing but the public API that every client since 2.1 has.
 *
 * <p>{@code produce BOOTSTRAP TOPIC WRITER CODEC COUNT PARTITIONS} writes records n = 0..COUNT-1 to partition n mod PARTITIONS and prints
 * {@code sent PARTITION OFFSET n}. Every fifth record has no key, every seventh no value; headers are writer, codec, n and one without a value.
 *
 * <p>{@code consume BOOTSTRAP TOPIC GROUP COUNT QUIET_MS} reads in a group until it has COUNT records, or for QUIET_MS nothing came after the
 * first assignment, and prints {@code assigned PARTITION} and {@code read PARTITION OFFSET KEY VALUE HEADERS}. Then it commits and leaves.
 */
public final class RoundTrip {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long GIVE_UP_MS = 60_000;

    public static void main(String[] words) throws Exception {
        if (words[0].equals("produce")) {
            produce(words[1], words[2], words[3], words[4], Integer.parseInt(words[5]), Integer.parseInt(words[6]));
        } else {
            consume(words[1], words[2], words[3], Integer.parseInt(words[4]), Long.parseLong(words[5]));
        }
    }

    private static void produce(String bootstrap, String topic, String writer, String codec, int count, int partitions) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("compression.type", codec);
        settings.put("linger.ms", "20");
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (int n = 0; n < count; n++) {
                byte[] key = n % 5 == 0 ? null : utf8("key-" + n);
                byte[] value = n % 7 == 0 ? null : utf8("value-" + n + "-é");
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(topic, n % partitions, key, value);
                record.headers().add("writer", utf8(writer)).add("codec", utf8(codec)).add("n", utf8("" + n)).add("nothing", null);
                sent.add(producer.send(record));
            }
            for (int n = 0; n < count; n++) {
                RecordMetadata place = sent.get(n).get();
                System.out.println("sent " + place.partition() + " " + place.offset() + " " + n);
            }
        }
    }

    private static void consume(String bootstrap, String topic, String group, int count, long quietMs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(Collections.singletonList(topic), new Announce());
            int read = 0;
            long begun = System.currentTimeMillis();
            long last = begun;
            while (read < count && System.currentTimeMillis() - begun < GIVE_UP_MS) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    System.out.println(line(record));
                    read++;
                    last = System.currentTimeMillis();
                }
                if (read > 0 && System.currentTimeMillis() - last > quietMs) {
                    break;
                }
            }
            consumer.commitSync();
        }
    }

    private static String line(ConsumerRecord<byte[], byte[]> record) {
        StringBuilder headers = new StringBuilder();
        for (Header header : record.headers()) {
            headers.append(header.key()).append('=').append(text(header.value())).append(',');
        }
        return "read " + record.partition() + " " + record.offset() + " " + text(record.key()) + " " + text(record.value()) + " " + headers;
    }

    private static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return bytes == null ? "null" : new String(bytes, StandardCharsets.UTF_8);
    }

    /** Prints which partitions a member holds. */
    private static final class Announce implements ConsumerRebalanceListener {
        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            for (TopicPartition partition : partitions) {
                System.out.println("assigned " + partition.partition());
            }
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            for (TopicPartition partition : partitions) {
                System.out.println("revoked " + partition.partition());
            }
        }
    }
}
