import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

/** Writes transactions: one for each further word, which ends with commit or abort. */
public final class Transactional {
    private static final int PARTITIONS = 3;

    private Transactional() {}

    public static void main(String[] words) throws Exception {
        var topic = words[1];
        var properties = new Properties();
        properties.put("bootstrap.servers", words[0]);
        properties.put("transactional.id", topic);
        properties.put("max.block.ms", "300000");
        try (var producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (int number = 2; number < words.length; number++) {
                producer.beginTransaction();
                for (int partition = 0; partition < PARTITIONS; partition++) {
                    producer.send(new ProducerRecord<>(topic, partition, null, number + "-" + words[number]));
                }
                producer.flush();
                if (words[number].equals("commit")) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
    }
}
