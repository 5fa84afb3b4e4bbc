import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a consumer group (KIP-848) and one of a share group (KIP-932), of the same topic, for
 * chaos/new_groups.py. One argument, an object as JSON: `client` settings, `topic`, `group`,
 * `share_group`. Prints lines of JSON, each with `at`, seconds of the machine's monotonic clock.
 * With the end of its input both leave their groups, and it ends.
 */
public class ChaosGroups {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Duration POLL = Duration.ofMillis(200), CALL = Duration.ofSeconds(6);
    static JsonNode options;
    static volatile boolean isStopping;

    public static void main(String[] args) throws Exception {
        options = JSON.readTree(args[0]);
        List<Thread> threads = List.of(new Member(), new ShareMember());
        threads.forEach(Thread::start);
        say("started", Map.of());
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

    static double now() {
        return System.nanoTime() / 1e9;
    }

    static synchronized void say(String event, Map<String, ?> words) {
        Map<String, Object> line = new HashMap<>(words);
        line.put("event", event);
        line.putIfAbsent("at", now());
        try {
            System.out.println(JSON.writeValueAsString(line));
            System.out.flush();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static Properties client(String group) {
        Properties made = new Properties();
        options.get("client").fields().forEachRemaining(
            each -> made.put(each.getKey(), each.getValue().asText()));
        made.put("group.id", options.get(group).asText());
        return made;
    }

    static void failed(String what, Throwable error) {
        say("failed", Map.of("what", what + " " + error.getClass().getSimpleName(), "words", "" + error));
    }

    /** Reads, and commits twice a second and when partitions are taken from it. */
    static class Member extends Thread implements ConsumerRebalanceListener {
        static final double COMMIT_EVERY_S = 0.5;
        /** The next offset of what is ours, once something of it was read. */
        final Map<TopicPartition, Long> positions = new HashMap<>();
        KafkaConsumer<byte[], byte[]> consumer;

        @Override
        public void run() {
            Properties made = client("group");
            made.put("group.protocol", "consumer");
            made.put("enable.auto.commit", "false");
            made.put("auto.offset.reset", "earliest");
            made.put("fetch.max.wait.ms", "100");
            consumer = new KafkaConsumer<>(made, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            consumer.subscribe(List.of(options.get("topic").asText()), this);
            double commitAt = now() + COMMIT_EVERY_S;
            while (!isStopping) {
                try {
                    note(consumer.poll(POLL));
                } catch (KafkaException error) {
                    failed("poll", error);
                }
                if (now() > commitAt) {
                    commit(positions);
                    commitAt = now() + COMMIT_EVERY_S;
                }
            }
            try {
                consumer.close(CloseOptions.timeout(CALL));
            } catch (KafkaException error) {
                failed("close", error);
            }
        }

        void note(ConsumerRecords<byte[], byte[]> records) {
            for (TopicPartition partition : records.partitions()) {
                List<ConsumerRecord<byte[], byte[]>> mine = records.records(partition);
                long first = mine.get(0).offset(), last = mine.get(mine.size() - 1).offset();
                say("read", Map.of("partition", partition.partition(),
                    "first", first, "end", last + 1, "count", mine.size()));
                positions.put(partition, last + 1);
            }
        }

        void commit(Map<TopicPartition, Long> wanted) {
            if (wanted.isEmpty()) {
                return;
            }
            Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
            List<long[]> words = new ArrayList<>();
            wanted.forEach((partition, offset) -> {
                offsets.put(partition, new OffsetAndMetadata(offset));
                words.add(new long[] {partition.partition(), offset});
            });
            double since = now();
            try {
                consumer.commitSync(offsets, CALL);
                say("committed", Map.of("offsets", words, "since", since));
            } catch (KafkaException error) {
                say("uncommitted", Map.of("offsets", words, "since", since,
                    "what", error.getClass().getSimpleName(), "words", "" + error));
            }
        }

        static List<Integer> numbers(Collection<TopicPartition> partitions) {
            return partitions.stream().map(TopicPartition::partition).toList();
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> given) {
            say("assigned", Map.of("partitions", numbers(given)));
            positions.keySet().removeAll(given);
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> taken) {
            Map<TopicPartition, Long> last = new HashMap<>(positions);
            last.keySet().retainAll(taken);
            commit(last);
            positions.keySet().removeAll(taken);
            say("revoked", Map.of("partitions", numbers(taken)));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> taken) {
            positions.keySet().removeAll(taken);
            say("lost", Map.of("partitions", numbers(taken)));
        }
    }

    /** What was delivered and is not settled yet, as far as this member was told. */
    record Delivery(int partition, long offset, int count, AcknowledgeType type) {}

    /**
     * Takes records, and says of each whether it is accepted, released or rejected: by requests of
     * their own (three times of four) or with the next fetch.
     */
    static class ShareMember extends Thread {
        KafkaShareConsumer<byte[], byte[]> consumer;
        /** By place: the delivery whose answer is awaited. None, for a place that came twice meanwhile. */
        final Map<List<Long>, Optional<Delivery>> awaited = new LinkedHashMap<>();
        /** When the poll before the last one began: what comes now was fetched later. */
        double since = now(), lastPoll = now();
        int turn = 0;

        @Override
        public void run() {
            Properties made = client("share_group");
            made.put("share.acknowledgement.mode", "explicit");
            made.put("fetch.max.wait.ms", "100");
            consumer = new KafkaShareConsumer<>(made, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            consumer.setAcknowledgementCommitCallback(
                (offsets, error) -> offsets.forEach(
                    (partition, numbers) -> told(partition.partition(), numbers, error)));
            consumer.subscribe(List.of(options.get("topic").asText()));
            while (!isStopping) {
                try {
                    one();
                } catch (KafkaException error) {
                    failed("share", error);
                }
            }
            try {
                consumer.close(CALL);
            } catch (KafkaException error) {
                failed("share close", error);
            }
        }

        void one() {
            since = lastPoll;
            lastPoll = now();
            ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
            if (records.isEmpty()) {
                return;
            }
            boolean isSync = turn++ % 4 != 0;
            Map<Integer, List<Long>> mine = new HashMap<>();
            for (TopicPartition partition : records.partitions()) {
                List<List<Object>> rows = new ArrayList<>();
                for (ConsumerRecord<byte[], byte[]> record : records.records(partition)) {
                    int count = record.deliveryCount().orElse((short) 0);
                    AcknowledgeType type = typeOf(record, count);
                    rows.add(List.of(record.offset(), count, type.name()));
                    awaited.merge(List.of((long) partition.partition(), record.offset()),
                        Optional.of(new Delivery(partition.partition(), record.offset(), count, type)),
                        (before, after) -> Optional.empty());
                    mine.computeIfAbsent(partition.partition(), key -> new ArrayList<>()).add(record.offset());
                    consumer.acknowledge(record, type);
                }
                say("got", Map.of("partition", partition.partition(), "since", since, "records", rows));
            }
            if (isSync) {
                commit(mine);
            }
        }

        void commit(Map<Integer, List<Long>> mine) {
            Map<TopicIdPartition, Optional<KafkaException>> answers = consumer.commitSync(CALL);
            answers.forEach((partition, error) -> {
                List<Long> offsets = mine.get(partition.partition());
                if (offsets != null) {
                    told(partition.partition(), offsets, error.orElse(null));
                }
            });
        }

        static AcknowledgeType typeOf(ConsumerRecord<byte[], byte[]> record, int count) {
            long mark = (record.offset() + record.partition()) % 20;
            if (count <= 1 && mark == 7) {
                return AcknowledgeType.RELEASE;
            }
            return mark == 13 ? AcknowledgeType.REJECT : AcknowledgeType.ACCEPT;
        }

        void told(int partition, Collection<Long> offsets, Exception error) {
            List<Long> known = new ArrayList<>();
            for (long offset : offsets) {
                Optional<Delivery> before = awaited.remove(List.of((long) partition, offset));
                if (before != null && before.isPresent()) {
                    known.add(offset);
                }
            }
            String what = error == null ? "" : error.getClass().getSimpleName();
            say("told", Map.of("partition", partition, "offsets", known, "error", what,
                "words", error == null ? "" : "" + error));
        }
    }
}
