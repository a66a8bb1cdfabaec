import java.util.Arrays;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

/** The word count of Kafka Streams, with a repartition topic and a changelog. Runs until its stdin ends or SIGTERM. */
public final class WordCount {
    private WordCount() {}

    public static void main(String[] words) throws Exception {
        var properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, words[3]);
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, words[0]);
        properties.put(StreamsConfig.STATE_DIR_CONFIG, words[4]);
        properties.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.StringSerde.class);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, words[5]);
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 200);
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        properties.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        properties.put(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "earliest");
        var protocol = words.length > 6 ? words[6] : "classic";
        properties.put(StreamsConfig.GROUP_PROTOCOL_CONFIG, protocol);
        if (protocol.equals("classic")) {
            // After a SIGKILL, others take its partitions when the session ends. A streams group has the broker's setting.
            properties.put(ConsumerConfig.SESSION_TIMEOUT_MS_CONFIG, 10_000);
        }
        var builder = new StreamsBuilder();
        builder.<String, String>stream(words[1])
            .flatMapValues(line -> Arrays.asList(line.toLowerCase(Locale.ROOT).split("\\W+")))
            .groupBy((key, word) -> word, Grouped.as("by-word"))
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(String::valueOf)
            .to(words[2], Produced.with(Serdes.String(), Serdes.String()));
        var failed = new CountDownLatch(1);
        try (var streams = new KafkaStreams(builder.build(), properties)) {
            streams.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                failed.countDown();
                return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
            });
            // SIGTERM closes the application, which commits its offsets.
            Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
            streams.start();
            System.out.println("started");
            while (System.in.read() >= 0) {
                continue;
            }
        }
        System.out.println("closed");
        System.exit(failed.getCount() == 0 ? 1 : 0);
    }
}
