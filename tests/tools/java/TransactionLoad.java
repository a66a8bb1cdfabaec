import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Load of the transaction benchmark. Each producer commits one transaction after the other, with one record of 100
 * bytes for every partition. One read_committed consumer reads all partitions.
 *
 * <p>Arguments: bootstrap, topic, partitions. Each line of standard input starts a measurement: the number of
 * producers and the seconds. The answer is one line: the seconds, the number of commits, and p50 and p99 in
 * microseconds of commitTransaction, of a transaction from begin to commit, and of the time from send to the
 * consumer.
 */
public final class TransactionLoad {
    private static final int RECORD_BYTES = 100;

    private final String bootstrap;
    private final String topic;
    private final int partitions;
    private final AtomicBoolean isMeasured = new AtomicBoolean();
    private final ConcurrentLinkedQueue<long[]> transactions = new ConcurrentLinkedQueue<>();
    private final ConcurrentLinkedQueue<Long> delays = new ConcurrentLinkedQueue<>();
    private final List<KafkaProducer<byte[], byte[]>> producers = new ArrayList<>();

    private TransactionLoad(String[] words) {
        bootstrap = words[0];
        topic = words[1];
        partitions = Integer.parseInt(words[2]);
    }

    public static void main(String[] words) throws Exception {
        var load = new TransactionLoad(words);
        var consumer = new Thread(load::consume);
        consumer.setDaemon(true);
        consumer.start();
        try (var lines = new BufferedReader(new InputStreamReader(System.in))) {
            for (var line = lines.readLine(); line != null; line = lines.readLine()) {
                var numbers = line.trim().split(" ");
                load.measure(Integer.parseInt(numbers[0]), Double.parseDouble(numbers[1]));
            }
        }
        for (var producer : load.producers) {
            producer.close();
        }
    }

    private void measure(int count, double seconds) throws Exception {
        while (producers.size() < count) {
            producers.add(newProducer("load-" + producers.size()));
        }
        transactions.clear();
        delays.clear();
        isMeasured.set(true);
        var beganNs = System.nanoTime();
        var threads = new ArrayList<Thread>();
        for (var producer : producers.subList(0, count)) {
            var thread = new Thread(() -> produce(producer));
            threads.add(thread);
            thread.start();
        }
        Thread.sleep((long) (seconds * 1000));
        isMeasured.set(false);
        for (var thread : threads) {
            thread.join();
        }
        var elapsedS = (System.nanoTime() - beganNs) / 1e9;
        var commits = transactions.stream().mapToLong(times -> times[0]).sorted().toArray();
        var wholes = transactions.stream().mapToLong(times -> times[1]).sorted().toArray();
        var seen = delays.stream().mapToLong(Long::longValue).sorted().toArray();
        System.out.printf(
                "%.3f %d %d %d %d %d %d %d%n",
                elapsedS, commits.length, percentile(commits, 0.5), percentile(commits, 0.99),
                percentile(wholes, 0.5), percentile(wholes, 0.99), percentile(seen, 0.5), percentile(seen, 0.99));
        System.out.flush();
    }

    private void produce(KafkaProducer<byte[], byte[]> producer) {
        while (isMeasured.get()) {
            var beganNs = System.nanoTime();
            producer.beginTransaction();
            for (int partition = 0; partition < partitions; partition++) {
                var value = new byte[RECORD_BYTES];
                ByteBuffer.wrap(value).putLong(System.nanoTime());
                producer.send(new ProducerRecord<>(topic, partition, null, value));
            }
            producer.flush();
            var flushedNs = System.nanoTime();
            producer.commitTransaction();
            var endedNs = System.nanoTime();
            transactions.add(new long[] {endedNs - flushedNs, endedNs - beganNs});
        }
    }

    private void consume() {
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("isolation.level", "read_committed");
        var bytes = new ByteArrayDeserializer();
        try (var consumer = new KafkaConsumer<>(properties, bytes, bytes)) {
            var assigned = new ArrayList<TopicPartition>();
            for (int partition = 0; partition < partitions; partition++) {
                assigned.add(new TopicPartition(topic, partition));
            }
            consumer.assign(assigned);
            consumer.seekToEnd(assigned);
            while (true) {
                var records = consumer.poll(Duration.ofMillis(100));
                var receivedNs = System.nanoTime();
                if (isMeasured.get()) {
                    records.forEach(record -> delays.add(receivedNs - ByteBuffer.wrap(record.value()).getLong()));
                }
            }
        }
    }

    private KafkaProducer<byte[], byte[]> newProducer(String transactionalId) {
        var properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("transactional.id", topic + "-" + transactionalId);
        properties.put("max.block.ms", "120000");
        properties.put("linger.ms", "0");
        var bytes = new ByteArraySerializer();
        var producer = new KafkaProducer<>(properties, bytes, bytes);
        producer.initTransactions();
        return producer;
    }

    private static long percentile(long[] sortedNs, double share) {
        return sortedNs.length == 0 ? -1 : sortedNs[(int) (share * (sortedNs.length - 1))] / 1000;
    }
}
