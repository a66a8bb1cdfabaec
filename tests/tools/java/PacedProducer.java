import java.io.BufferedWriter;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Sends numbered records to one partition at a steady rate until a file appears, and writes a line for each acknowledgement: number, when it was
 * sent, when it was acknowledged (both System.nanoTime, which is CLOCK_MONOTONIC), offset.
 *
 * Words: bootstrap topic partition record-bytes bytes-per-second stop-file report-file [property=value ...]. A rate of 0 means as fast as it goes.
 */
public final class PacedProducer {
    public static void main(String[] words) throws Exception {
        String topic = words[1];
        int partition = Integer.parseInt(words[2]);
        int recordBytes = Integer.parseInt(words[3]);
        double bytesPerSecond = Double.parseDouble(words[4]);
        Path stop = Path.of(words[5]);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", words[0]);
        properties.put("enable.idempotence", "true");
        properties.put("acks", "all");
        for (int at = 7; at < words.length; at++) {
            int equals = words[at].indexOf('=');
            properties.put(words[at].substring(0, equals), words[at].substring(equals + 1));
        }
        AtomicReference<Exception> failure = new AtomicReference<>();
        try (BufferedWriter report = Files.newBufferedWriter(Path.of(words[6]));
                KafkaProducer<byte[], byte[]> producer =
                        new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.partitionsFor(topic);
            long began = System.nanoTime();
            for (long number = 0; failure.get() == null && (number % 64 != 0 || !Files.exists(stop)); number++) {
                if (bytesPerSecond > 0) {
                    long due = began + (long) (number * recordBytes / bytesPerSecond * 1e9);
                    long ahead = due - System.nanoTime();
                    if (ahead > 0) {
                        Thread.sleep(ahead / 1_000_000, (int) (ahead % 1_000_000));
                    }
                }
                byte[] value = ByteBuffer.allocate(recordBytes).putLong(number).array();
                long sending = number;
                long sent = System.nanoTime();
                producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
                    if (error != null) {
                        failure.compareAndSet(null, error);
                        return;
                    }
                    try {
                        synchronized (report) {
                            report.write(sending + " " + sent + " " + System.nanoTime() + " " + metadata.offset() + "\n");
                        }
                    } catch (java.io.IOException unwritten) {
                        failure.compareAndSet(null, unwritten);
                    }
                });
            }
            producer.flush();
        }
        if (failure.get() != null) {
            System.err.println("a send failed for good: " + failure.get());
            System.exit(1);
        }
    }
}
