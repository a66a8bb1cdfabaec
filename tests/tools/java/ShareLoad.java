import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Load of the benchmark of share groups: consumers that acknowledge each record, and wait for each acknowledgement.
 *
 * <p>Arguments: bootstrap, topic, group, consumers, records of a poll. Each line of standard input is a number of
 * records. The consumers read and acknowledge as many, and the answer is one line: the seconds, the acknowledged
 * records, the number of commits, p50 and p99 of a commit in microseconds, and the failed commits.
 */
public final class ShareLoad {
    private final List<KafkaShareConsumer<byte[], byte[]>> consumers = new ArrayList<>();
    private final ConcurrentLinkedQueue<Long> commitsNs = new ConcurrentLinkedQueue<>();
    private final AtomicLong acknowledged = new AtomicLong();
    private final AtomicLong failed = new AtomicLong();
    private final AtomicLong endedNs = new AtomicLong();

    private ShareLoad(String[] words) {
        for (int number = 0; number < Integer.parseInt(words[3]); number++) {
            var settings = new Properties();
            settings.put("bootstrap.servers", words[0]);
            settings.put("group.id", words[2]);
            settings.put("share.acknowledgement.mode", "explicit");
            settings.put("max.poll.records", words[4]);
            settings.put("share.acquire.mode", words[4].equals("1") ? "record_limit" : "batch_optimized");
            var bytes = new ByteArrayDeserializer();
            var consumer = new KafkaShareConsumer<>(settings, bytes, bytes);
            consumer.subscribe(List.of(words[1]));
            consumers.add(consumer);
        }
    }

    public static void main(String[] words) throws Exception {
        var load = new ShareLoad(words);
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (var line = lines.readLine(); line != null; line = lines.readLine()) {
            load.measure(Long.parseLong(line.trim()));
        }
    }

    private void measure(long records) throws Exception {
        commitsNs.clear();
        acknowledged.set(0);
        failed.set(0);
        var ended = new CountDownLatch(consumers.size());
        var beganNs = System.nanoTime();
        for (var consumer : consumers) {
            new Thread(() -> {
                try {
                    consume(consumer, records);
                } finally {
                    ended.countDown();
                }
            }).start();
        }
        ended.await();
        var sorted = commitsNs.stream().mapToLong(Long::longValue).sorted().toArray();
        System.out.printf(
                "%.3f %d %d %d %d %d%n",
                (endedNs.get() - beganNs) / 1e9, acknowledged.get(), sorted.length, percentile(sorted, 0.5), percentile(sorted, 0.99), failed.get());
        System.out.flush();
    }

    private void consume(KafkaShareConsumer<byte[], byte[]> consumer, long records) {
        while (acknowledged.get() < records) {
            var polled = consumer.poll(Duration.ofMillis(100));
            if (polled.isEmpty()) {
                continue;
            }
            polled.forEach(record -> consumer.acknowledge(record, AcknowledgeType.ACCEPT));
            var beganNs = System.nanoTime();
            var results = consumer.commitSync();
            var returnedNs = System.nanoTime();
            if (results.values().stream().anyMatch(error -> error.isPresent())) {
                failed.incrementAndGet();
                continue;
            }
            commitsNs.add(returnedNs - beganNs);
            acknowledged.addAndGet(polled.count());
            endedNs.accumulateAndGet(returnedNs, Math::max);
        }
    }

    private static long percentile(long[] sortedNs, double share) {
        return sortedNs.length == 0 ? -1 : sortedNs[(int) (share * (sortedNs.length - 1))] / 1000;
    }
}
