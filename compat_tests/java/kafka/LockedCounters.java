import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * One instance of a service that keeps counters in a topic, with optimistic locks by headers alone:
 * `LockedCounters BOOTSTRAP TOPIC INSTANCES COUNTERS INCREMENTS`. Each instance writes a record
 * «ready», waits for those of all, and then increments each counter so often. A record is the
 * counter's name and its new number. What this instance knows is what it has read back. Prints
 * «done refused=N».
 */
public class LockedCounters {
    private final TopicPartition partition;
    private final KafkaProducer<String, String> producer;
    private final KafkaConsumer<String, String> consumer;
    private final Map<String, Integer> counters = new HashMap<>();
    private int refused = 0;

    LockedCounters(String bootstrap, String topic) {
        partition = new TopicPartition(topic, 0);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("enable.idempotence", "false");
        settings.put("linger.ms", "0");
        settings.put("batch.size", "0");
        settings.put("retries", "0");
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        Properties reading = new Properties();
        reading.put("bootstrap.servers", bootstrap);
        reading.put("enable.auto.commit", "false");
        consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
        consumer.assign(List.of(partition));
        consumer.seekToBeginning(List.of(partition));
    }

    public static void main(String[] args) throws Exception {
        LockedCounters service = new LockedCounters(args[0], args[1]);
        int instances = Integer.parseInt(args[2]);
        service.producer.send(new ProducerRecord<>(args[1], 0, null, "ready")).get();
        while (service.counters.getOrDefault("ready", 0) < instances) {
            service.apply();
        }
        for (int number = 0; number < Integer.parseInt(args[4]); number++) {
            for (int counter = 0; counter < Integer.parseInt(args[3]); counter++) {
                service.increment("counter-" + counter);
            }
        }
        System.out.println("done refused=" + service.refused);
        service.producer.close();
        service.consumer.close();
    }

    void increment(String name) throws Exception {
        while (true) {
            long position = consumer.position(partition);
            int next = counters.getOrDefault(name, 0) + 1;
            var record = new ProducerRecord<String, String>(partition.topic(), 0, null, name + " " + next);
            record.headers().add("quire.position", bytes(Long.toString(position)));
            record.headers().add("quire.lock.write", bytes(name));
            try {
                long offset = producer.send(record).get().offset();
                applyUpTo(offset);
                return;
            } catch (ExecutionException error) {
                String text = String.valueOf(error.getCause().getMessage());
                if (!(error.getCause() instanceof InvalidRecordException) || !text.startsWith("LOCK_CONFLICT")) {
                    throw error;
                }
                refused++;
                applyUpTo(Long.parseLong(text.replaceAll(".* conflict=(\\d+) .*", "$1")));
            }
        }
    }

    void applyUpTo(long offset) {
        while (consumer.position(partition) <= offset) {
            apply();
        }
    }

    void apply() {
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
            String[] words = record.value().split(" ");
            counters.merge(words[0], 1, (known, one) -> known + one);
        }
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
