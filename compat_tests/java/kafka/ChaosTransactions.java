import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureMetadata;
import org.apache.kafka.clients.admin.FinalizedVersionRange;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.utils.AppInfoParser;

/**
 * What chaos/transactional.py does by librdkafka, by Java's client: a worker for each of `workers`,
 * partitions of the source, and a reader of committed records for each of `read`. One argument, an
 * object as JSON. Prints lines of JSON: {"event":"started",...}, then of workers "went-back",
 * "committed" (each with where it is), "aborted", "failed", and of readers "seen"; "wrong" is a
 * promise that was not kept. Ends with its input.
 */
public class ChaosTransactions {
    static final ObjectMapper JSON = new ObjectMapper();
    static final String TO_COMMIT = "commit", TO_ABORT = "abort";
    static JsonNode options;
    static volatile boolean isStopping;

    public static void main(String[] args) throws Exception {
        options = JSON.readTree(args[0]);
        say("started", Map.of(
            "version", AppInfoParser.getVersion(), "transaction_version", transactionVersion()));
        List<Thread> threads = new ArrayList<>();
        for (JsonNode partition : options.get("workers")) {
            threads.add(new Worker(partition.asInt()));
        }
        options.get("read").fields().forEachRemaining(
            each -> threads.add(new Reader(each.getKey(), each.getValue().asInt())));
        threads.forEach(Thread::start);
        while (System.in.read() >= 0) {
            // Only its end says something.
        }
        isStopping = true;
        for (Thread each : threads) {
            each.join();
        }
        say("ended", Map.of());
        Runtime.getRuntime().halt(0);
    }

    /** What the cluster has finalized: clients of 4.x speak that version. */
    static int transactionVersion() throws Exception {
        try (Admin admin = Admin.create(client())) {
            FeatureMetadata found = admin.describeFeatures().featureMetadata().get();
            FinalizedVersionRange range = found.finalizedFeatures().get("transaction.version");
            return range == null ? 0 : range.maxVersionLevel();
        }
    }

    static synchronized void say(String event, Map<String, ?> words) {
        Map<String, Object> line = new HashMap<>(words);
        line.put("event", event);
        try {
            System.out.println(JSON.writeValueAsString(line));
            System.out.flush();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static Properties client() {
        Properties made = new Properties();
        options.get("client").fields().forEachRemaining(
            each -> made.put(each.getKey(), each.getValue().asText()));
        return made;
    }

    static KafkaConsumer<byte[], byte[]> consumer(String group) {
        Properties made = client();
        made.put("enable.auto.commit", "false");
        made.put("isolation.level", "read_committed");
        made.put("auto.offset.reset", "none");
        made.put("fetch.max.wait.ms", "100");
        made.put("default.api.timeout.ms", options.get("call_ms").asText());
        if (group != null) {
            made.put("group.id", group);
        }
        return new KafkaConsumer<>(made, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    /** Of one partition of the source; see chaos/transactional.py, Worker. */
    static class Worker extends Thread {
        final int number;
        final Random random;
        final TopicPartition source;
        final int callMs = options.get("call_ms").asInt();
        final int transactionMs = options.get("transaction_ms").asInt();
        final KafkaConsumer<byte[], byte[]> consumer;
        KafkaProducer<byte[], byte[]> producer;
        long committed = 0;
        int transactions = 0;

        Worker(int number) {
            super("worker " + number);
            this.number = number;
            random = new Random(number);
            source = new TopicPartition(options.get("source").asText(), number);
            consumer = consumer("chaos-tx-" + number);
        }

        @Override
        public void run() {
            while (!isStopping) {
                try {
                    if (producer == null) {
                        beginAnew();
                    }
                    one();
                } catch (KafkaException | IllegalStateException error) {
                    failed(error);
                }
            }
            if (producer != null) {
                producer.close(Duration.ZERO);
            }
            consumer.close(org.apache.kafka.clients.consumer.CloseOptions.timeout(Duration.ZERO));
        }

        /** A new producer under the old id: what is open is aborted, what was decided is done. */
        void beginAnew() {
            Properties made = client();
            made.put("transactional.id", "chaos-tx-" + number);
            made.put("transaction.timeout.ms", "" + transactionMs);
            made.put("delivery.timeout.ms", "" + (transactionMs - 1000));
            made.put("max.block.ms", "" + callMs);
            made.put("linger.ms", "2");
            KafkaProducer<byte[], byte[]> opened =
                new KafkaProducer<>(made, new ByteArraySerializer(), new ByteArraySerializer());
            try {
                opened.initTransactions();
            } catch (RuntimeException error) {
                opened.close(Duration.ZERO);
                throw error;
            }
            producer = opened;
            say("producer", Map.of("partition", number));
            goBack();
        }

        /** To what is committed. It never falls, and is what this worker was told, at least. */
        void goBack() {
            OffsetAndMetadata found = consumer.committed(Set.of(source)).get(source);
            long offset = found == null ? 0 : found.offset();
            if (offset < committed) {
                say("wrong", Map.of("words",
                    getName() + ": committed is " + offset + ", and was " + committed));
            }
            committed = offset;
            consumer.assign(List.of(source));
            consumer.seek(source, offset);
            say("went-back", Map.of("partition", number, "committed", committed));
        }

        /** One transaction, if there is something to do. */
        void one() {
            List<ConsumerRecord<byte[], byte[]>> records =
                consumer.poll(Duration.ofMillis(200)).records(source);
            if (records.isEmpty()) {
                return;
            }
            records = records.subList(
                0, Math.min(records.size(), 1 + random.nextInt(options.get("records_max").asInt())));
            long end = records.get(records.size() - 1).offset() + 1;
            consumer.seek(source, end);
            transactions++;
            boolean isToAbort = transactions % options.get("aborted_every").asInt() == 0;
            producer.beginTransaction();
            for (ConsumerRecord<byte[], byte[]> record : records) {
                write(record.offset(), isToAbort ? TO_ABORT : TO_COMMIT);
            }
            producer.sendOffsetsToTransaction(
                Map.of(source, new OffsetAndMetadata(end)), consumer.groupMetadata());
            if (isToAbort) {
                // With all of it written, or with records that were never sent.
                if (random.nextBoolean()) {
                    producer.flush();
                }
                patiently(producer::abortTransaction);
                say("aborted", Map.of("partition", number));
                goBack();
            } else {
                patiently(producer::commitTransaction);
                committed = end;
                say("committed", Map.of(
                    "partition", number, "committed", end, "records", records.size()));
            }
        }

        void write(long offset, String purpose) {
            byte[] value = (number + " " + offset + " " + purpose).getBytes(StandardCharsets.US_ASCII);
            int places = options.get("out_partitions").asInt();
            String out = options.get("out").asText();
            int first = (int) ((number + offset) % places);
            producer.send(new ProducerRecord<>(out, first, null, value));
            producer.send(new ProducerRecord<>(out, (first + 1) % places, null, value));
            byte[] key = (number + "-" + offset % options.get("keys").asInt())
                .getBytes(StandardCharsets.US_ASCII);
            producer.send(new ProducerRecord<>(options.get("keyed").asText(), number, key, value));
        }

        /** Until it is known what came of it: a call that took too long goes on when repeated. */
        void patiently(Runnable end) {
            long deadline = System.nanoTime() + Duration.ofMillis(2L * transactionMs).toNanos();
            while (true) {
                try {
                    end.run();
                    return;
                } catch (TimeoutException error) {
                    if (System.nanoTime() > deadline) {
                        throw error;
                    }
                }
            }
        }

        /** What may be answered by an abort is; else another producer settles what is open. */
        void failed(RuntimeException error) {
            tellFailure("failed", error);
            if (producer == null) {
                pause();
                return;
            }
            try {
                patiently(producer::abortTransaction);
                goBack();
            } catch (KafkaException | IllegalStateException worse) {
                tellFailure("abort failed", worse);
                producer.close(Duration.ZERO);
                producer = null;
                pause();
            }
        }

        void tellFailure(String what, RuntimeException error) {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            say("failed", Map.of(
                "partition", number, "what", what + " " + cause.getClass().getSimpleName(),
                "words", "" + error));
        }

        void pause() {
            try {
                Thread.sleep(100);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    /** Reads the ends of all partitions of a topic, and now and then some of what it read before. */
    static class Reader extends Thread {
        static final int AGAIN_MAX = 2000;
        static final long REWOUND_EVERY_NS = Duration.ofSeconds(5).toNanos();
        final String topic;
        final List<TopicPartition> partitions = new ArrayList<>();
        final Random random = new Random(1);
        final KafkaConsumer<byte[], byte[]> consumer = consumer(null);
        /** By partition: value by offset; and the next offset after all that was ever read. */
        final Map<Integer, Map<Long, String>> seen = new HashMap<>();
        final Map<Integer, Long> ends = new HashMap<>();
        long rewindAt = System.nanoTime() + REWOUND_EVERY_NS;

        Reader(String topic, int count) {
            super("reader of " + topic);
            this.topic = topic;
            for (int number = 0; number < count; number++) {
                partitions.add(new TopicPartition(topic, number));
                seen.put(number, new HashMap<>());
                ends.put(number, 0L);
            }
        }

        @Override
        public void run() {
            consumer.assign(partitions);
            partitions.forEach(each -> consumer.seek(each, 0));
            while (!isStopping) {
                try {
                    ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
                    records.forEach(this::note);
                } catch (KafkaException error) {
                    say("failed", Map.of("what", "read " + error.getClass().getSimpleName(),
                        "words", "" + error));
                }
                if (System.nanoTime() > rewindAt) {
                    rewind();
                }
            }
            consumer.close(org.apache.kafka.clients.consumer.CloseOptions.timeout(Duration.ZERO));
        }

        void rewind() {
            int back = random.nextInt(AGAIN_MAX);
            partitions.forEach(
                each -> consumer.seek(each, Math.max(ends.get(each.partition()) - back, 0)));
            rewindAt = System.nanoTime() + REWOUND_EVERY_NS;
        }

        void note(ConsumerRecord<byte[], byte[]> record) {
            String value = new String(record.value(), StandardCharsets.US_ASCII);
            String place = getName() + ", " + record.partition() + "/" + record.offset();
            String before = seen.get(record.partition()).putIfAbsent(record.offset(), value);
            if (before != null) {
                if (!before.equals(value)) {
                    say("wrong", Map.of("words", place + " read " + before + ", later " + value));
                }
                return;
            }
            if (record.offset() < ends.get(record.partition())) {
                say("wrong", Map.of("words", place + " was passed over, and later read: " + value));
            }
            ends.put(record.partition(), Math.max(ends.get(record.partition()), record.offset() + 1));
            if (value.endsWith(TO_ABORT)) {
                say("wrong", Map.of("words", "aborted, and read: " + value + ", " + place));
            }
            say("seen", Map.of("topic", topic, "partition", record.partition(),
                "offset", record.offset(), "value", value));
        }
    }
}
