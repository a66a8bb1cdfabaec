import java.io.FileWriter;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies records from one topic to another, exactly once: tests/acceptance/copier.py in Java, with the same words and report.
 *
 * Words: bootstrap name incarnation timeout-ms stop-file report-file.
 */
public final class Copier implements ConsumerRebalanceListener {
    private static final int FATAL_EXIT = 3;
    private static final int ABORT_EVERY = 10;
    private static final int LENGTHS = 8;
    private static final Duration POLL = Duration.ofMillis(100);

    private final String name;
    private final String prefix;
    private final Path stop;
    private final FileWriter report;
    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private final Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
    private boolean isRebalanced;
    private int number;
    private int records;

    private Copier(String[] words) throws IOException {
        name = words[1];
        prefix = name + "." + words[2];
        stop = Path.of(words[4]);
        report = new FileWriter(words[5], true);
        String identity = "copy-" + name;
        Properties writing = new Properties();
        writing.put("bootstrap.servers", words[0]);
        writing.put("transactional.id", identity);
        writing.put("transaction.timeout.ms", words[3]);
        writing.put("max.block.ms", "300000");
        producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
        Properties reading = new Properties();
        reading.put("bootstrap.servers", words[0]);
        reading.put("group.id", identity);
        reading.put("group.instance.id", identity);
        reading.put("session.timeout.ms", "45000");
        reading.put("isolation.level", "read_committed");
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
    }

    public static void main(String[] words) throws Exception {
        Copier copier = new Copier(words);
        try {
            copier.run();
        } catch (RuntimeException error) {
            error.printStackTrace();
            copier.say("fatal", error.toString());
            // A close would wait for records that cannot be sent any more.
            Runtime.getRuntime().halt(FATAL_EXIT);
        }
    }

    private void run() throws IOException {
        producer.initTransactions();
        consumer.subscribe(List.of("in-" + name), this);
        say("ready", "");
        while (!Files.exists(stop)) {
            ConsumerRecords<String, String> found = consumer.poll(POLL);
            if (!found.isEmpty()) {
                try {
                    transaction(found);
                } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException error) {
                    throw error;
                } catch (KafkaException error) {
                    abort(error + " because of " + error.getCause());
                }
            }
        }
        consumer.close();
        producer.close();
    }

    private void transaction(ConsumerRecords<String, String> first) throws IOException {
        isRebalanced = false;
        offsets.clear();
        number++;
        records = 0;
        producer.beginTransaction();
        say("open", "");
        long ends = System.nanoTime() + 200_000_000L * (1 + number % LENGTHS);
        for (ConsumerRecords<String, String> found = first; ; found = consumer.poll(POLL)) {
            if (isRebalanced) {
                abort("the group was rebalanced");
                return;
            }
            send(found);
            if (System.nanoTime() - ends >= 0) {
                break;
            }
        }
        producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
        if (number % ABORT_EVERY == 0) {
            abort("on purpose");
            return;
        }
        producer.flush();
        say("end", "");
        commit();
        say("commit", "");
    }

    private void send(ConsumerRecords<String, String> found) {
        for (ConsumerRecord<String, String> record : found) {
            producer.send(new ProducerRecord<>("out-" + name, record.partition(), prefix + "." + number, record.value()));
            offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
            records++;
        }
    }

    private void commit() throws IOException {
        while (true) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                say("retry", error.toString());
            }
        }
    }

    private void abort(String reason) throws IOException {
        producer.abortTransaction();
        say("abort", reason);
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment(), Duration.ofMinutes(5));
        for (TopicPartition place : consumer.assignment()) {
            OffsetAndMetadata at = committed.get(place);
            consumer.seek(place, at == null ? 0 : at.offset());
        }
    }

    private void say(String what, String reason) throws IOException {
        String text = reason.replaceAll("\\s+", " ");
        report.write(what + " " + System.nanoTime() + " " + prefix + "." + number + " " + records + " " + text + "\n");
        report.flush();
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        isRebalanced = true;
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        isRebalanced = true;
    }
}
