import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * Kafka's Java producer and consumer behind lines of JSON. `TransactionTool BOOTSTRAP` prints
 * {"version":...}, that of the client, then answers each line of standard input, {"do":NAME,...}, with
 * one line: the outcome, or {"error":CLASS,"message":...}. `flood` also prints {"event":...,"number":N}
 * while it goes on. Ends with its input, without a word to the server.
 */
public class TransactionTool {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Map<String, KafkaProducer<String, String>> producers = new HashMap<>();
    static String bootstrap;
    static Flood flood;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        say(Map.of("version", AppInfoParser.getVersion()));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, ?> outcome;
            try {
                outcome = run(JSON.readTree(line));
            } catch (Throwable thrown) {
                outcome = failure(thrown);
            }
            say(outcome);
        }
        Runtime.getRuntime().halt(0);
    }

    static synchronized void say(Map<String, ?> answer) throws Exception {
        System.out.println(JSON.writeValueAsString(answer));
        System.out.flush();
    }

    static Map<String, ?> failure(Throwable thrown) {
        while (thrown instanceof ExecutionException && thrown.getCause() != null) {
            thrown = thrown.getCause();
        }
        Map<String, Object> said = new HashMap<>();
        said.put("error", thrown.getClass().getSimpleName());
        said.put("message", String.valueOf(thrown.getMessage()));
        // A producer that is fenced wraps who told it.
        Throwable cause = thrown.getCause();
        said.put("cause", cause == null ? "" : cause.getClass().getSimpleName());
        return said;
    }

    static Map<String, ?> run(JsonNode line) throws Exception {
        KafkaProducer<String, String> producer = producers.get(line.path("name").asText());
        switch (line.path("do").asText()) {
            case "producer":
                producers.put(line.get("name").asText(), open(line.path("settings")));
                return Map.of();
            case "init":
                producer.initTransactions();
                return Map.of();
            case "begin":
                producer.beginTransaction();
                return Map.of();
            case "send":
                return send(producer, line);
            case "offsets":
                producer.sendOffsetsToTransaction(
                    Map.of(partition(line), new OffsetAndMetadata(line.get("offset").asLong())),
                    new ConsumerGroupMetadata(line.get("group").asText()));
                return Map.of();
            case "commit":
                producer.commitTransaction();
                return Map.of();
            case "abort":
                producer.abortTransaction();
                return Map.of();
            case "close":
                // At once: a transaction that is open stays so.
                producers.remove(line.get("name").asText()).close(Duration.ZERO);
                return Map.of();
            case "read":
                return read(line);
            case "committed":
                return committed(line);
            case "flood":
                flood = new Flood(producer, line);
                flood.start();
                return Map.of();
            case "stop":
                return flood.end();
            default:
                throw new IllegalArgumentException("no command " + line);
        }
    }

    static Properties client(JsonNode settings) {
        Properties made = new Properties();
        made.put("bootstrap.servers", bootstrap);
        settings.fields().forEachRemaining(each -> made.put(each.getKey(), each.getValue().asText()));
        return made;
    }

    static KafkaProducer<String, String> open(JsonNode settings) {
        return new KafkaProducer<>(client(settings), new StringSerializer(), new StringSerializer());
    }

    static TopicPartition partition(JsonNode line) {
        return new TopicPartition(line.get("topic").asText(), line.get("partition").asInt());
    }

    /** `values` to each of `partitions`, all acknowledged: the offsets by partition. */
    static Map<String, ?> send(KafkaProducer<String, String> producer, JsonNode line) throws Exception {
        Map<Integer, List<Future<RecordMetadata>>> sent = new TreeMap<>();
        for (JsonNode value : line.get("values")) {
            for (JsonNode partition : line.get("partitions")) {
                int number = partition.asInt();
                Future<RecordMetadata> future = producer.send(
                    new ProducerRecord<>(line.get("topic").asText(), number, null, value.asText()));
                sent.computeIfAbsent(number, n -> new ArrayList<>()).add(future);
            }
        }
        producer.flush();
        Map<String, List<Long>> offsets = new TreeMap<>();
        for (Map.Entry<Integer, List<Future<RecordMetadata>>> each : sent.entrySet()) {
            List<Long> of = offsets.computeIfAbsent("" + each.getKey(), n -> new ArrayList<>());
            for (Future<RecordMetadata> future : each.getValue()) {
                of.add(future.get().offset());
            }
        }
        return Map.of("offsets", offsets);
    }

    static KafkaConsumer<String, String> consumer(JsonNode line, String group) {
        Properties made = client(line.path("settings"));
        made.put("enable.auto.commit", "false");
        made.put("isolation.level", line.path("isolation").asText("read_committed"));
        if (group != null) {
            made.put("group.id", group);
        }
        return new KafkaConsumer<>(made, new StringDeserializer(), new StringDeserializer());
    }

    /** Values by partition, from the beginning to the end that the isolation level has now. */
    static Map<String, ?> read(JsonNode line) {
        try (KafkaConsumer<String, String> consumer = consumer(line, null)) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (JsonNode number : line.get("partitions")) {
                partitions.add(new TopicPartition(line.get("topic").asText(), number.asInt()));
            }
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            Map<String, List<String>> values = new TreeMap<>();
            partitions.forEach(each -> values.put("" + each.partition(), new ArrayList<>()));
            long deadline = System.nanoTime() + Duration.ofSeconds(60).toNanos();
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("not at the end in 60 s: " + ends);
                }
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                for (ConsumerRecord<String, String> record : records) {
                    if (record.offset() < ends.get(new TopicPartition(record.topic(), record.partition()))) {
                        values.get("" + record.partition()).add(record.value());
                    }
                }
            }
            Map<String, Long> told = new TreeMap<>();
            ends.forEach((partition, end) -> told.put("" + partition.partition(), end));
            return Map.of("values", values, "ends", told);
        }
    }

    /** A group's offset, as one who waits for open transactions sees it; -1: none. */
    static Map<String, ?> committed(JsonNode line) {
        try (KafkaConsumer<String, String> consumer = consumer(line, line.get("group").asText())) {
            Duration patience = Duration.ofMillis(line.path("timeout_ms").asLong(20_000));
            OffsetAndMetadata found = consumer
                .committed(java.util.Set.of(partition(line)), patience).get(partition(line));
            return Map.of("offset", found == null ? -1L : found.offset());
        }
    }

    /**
     * Transaction after transaction: its number as a value to each partition, two records each, and the
     * number as a group's offset. One of four is aborted. Tells of each, in its order, what became of
     * it: committed or aborted. What cannot be answered by an abort ends it.
     */
    static class Flood extends Thread {
        final KafkaProducer<String, String> producer;
        final JsonNode line;
        final Random random;
        volatile boolean isStopping;
        Throwable failed;
        int number = 0;

        Flood(KafkaProducer<String, String> producer, JsonNode line) {
            this.producer = producer;
            this.line = line;
            random = new Random(line.path("seed").asLong());
        }

        @Override
        public void run() {
            try {
                while (!isStopping) {
                    one(++number);
                }
            } catch (Throwable thrown) {
                failed = thrown;
            }
        }

        void one(int number) throws Exception {
            producer.beginTransaction();
            try {
                for (int copy = 0; copy < 2; copy++) {
                    for (JsonNode partition : line.get("partitions")) {
                        producer.send(new ProducerRecord<>(
                            line.get("topic").asText(), partition.asInt(), null, "" + number));
                    }
                }
                if (line.has("group")) {
                    producer.sendOffsetsToTransaction(
                        Map.of(new TopicPartition(line.get("topic").asText(), 0), new OffsetAndMetadata(number)),
                        new ConsumerGroupMetadata(line.get("group").asText()));
                }
                if (random.nextInt(4) == 0) {
                    producer.flush();
                    producer.abortTransaction();
                    tell("aborted", number);
                    return;
                }
            } catch (KafkaException error) {
                // As its contract says: what is not fatal is answered by an abort; a fatal one throws.
                patiently(producer::abortTransaction);
                tell("aborted", number);
                return;
            }
            try {
                patiently(producer::commitTransaction);
                tell("committed", number);
            } catch (KafkaException error) {
                patiently(producer::abortTransaction);
                tell("aborted", number);
            }
        }

        /** A call that took too long may be repeated, and goes on where it was. */
        void patiently(Runnable call) {
            for (int tries = 0; ; tries++) {
                try {
                    call.run();
                    return;
                } catch (org.apache.kafka.common.errors.TimeoutException error) {
                    if (tries == 5) {
                        throw error;
                    }
                }
            }
        }

        void tell(String outcome, int number) throws Exception {
            say(Map.of("event", outcome, "number", number));
        }

        Map<String, ?> end() throws Exception {
            isStopping = true;
            join();
            return failed == null ? Map.of("last", number) : failure(failed);
        }
    }
}
