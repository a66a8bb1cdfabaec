import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringSerializer;

/** Asks for transactions; prints the class of the exception that the client ends with. */
public final class Transactional {
    private Transactional() {}

    public static void main(String[] words) {
        var properties = new Properties();
        properties.put("bootstrap.servers", words[0]);
        properties.put("transactional.id", "payments");
        properties.put("max.block.ms", words[1]);
        try (var producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            System.out.println("none");
        } catch (KafkaException error) {
            System.out.println(error.getClass().getName());
            System.out.println(error);
        }
    }
}
