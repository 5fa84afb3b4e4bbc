import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Counts the records of a topic by key, for chaos/streams_counting.py: a record's key is its number,
 * of the beginning of its value, modulo `keys`. Each count goes to topic `out` as «key count». One
 * argument, an object as JSON: `settings`, `topic`, `out`, `keys`. Prints lines of JSON. With the end
 * of its input it leaves the group, and ends.
 */
public class ChaosStreams {
    static final ObjectMapper JSON = new ObjectMapper();
    static final long TOLD_EVERY_NS = Duration.ofMillis(100).toNanos();
    static volatile long toldAt = System.nanoTime();

    public static void main(String[] args) throws Exception {
        JsonNode options = JSON.readTree(args[0]);
        Properties settings = new Properties();
        options.get("settings").fields().forEachRemaining(
            each -> settings.put(each.getKey(), each.getValue().asText()));
        String out = options.get("out").asText();
        int keys = options.get("keys").asInt();
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(options.get("topic").asText(), Consumed.with(Serdes.Bytes(), Serdes.String()))
            .map((none, value) -> KeyValue.pair("" + number(value) % keys, value))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts"))
            .toStream()
            .peek((key, count) -> counted())
            .map((key, count) -> KeyValue.pair(key, key + " " + count))
            .to(out, Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> {
            Throwable cause = error.getCause() == null ? error : error.getCause();
            say("failed", Map.of("what", cause.getClass().getSimpleName(), "words", error + ": " + cause));
            return StreamThreadExceptionResponse.REPLACE_THREAD;
        });
        streams.setStateListener((now, before) -> say("state", Map.of("state", now.name())));
        streams.start();
        while (System.in.read() >= 0) {
            // Only its end says something.
        }
        boolean isClosed = streams.close(Duration.ofSeconds(20));
        say("ended", Map.of("closed", isClosed));
        Runtime.getRuntime().halt(0);
    }

    static long number(String value) {
        return Long.parseLong(value.substring(0, value.indexOf('.')));
    }

    static void counted() {
        if (System.nanoTime() - toldAt > TOLD_EVERY_NS) {
            toldAt = System.nanoTime();
            say("counted", Map.of());
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
}
