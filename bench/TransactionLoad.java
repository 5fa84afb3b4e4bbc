// Producers that commit transactions of so many records each, as fast as they can.
// Prints a line of JSON: transactions per second, and the percentiles of one from begin to commit.
// Java's client speaks version 2 of the protocol where the server has finalized it.

import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class TransactionLoad {
    private static final int RECORD_BYTES = 1000;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        int producers = Integer.parseInt(arguments[3]);
        int records = Integer.parseInt(arguments[4]);
        double seconds = Double.parseDouble(arguments[5]);
        double warmUpSeconds = Double.parseDouble(arguments[6]);
        CountDownLatch ready = new CountDownLatch(producers);
        ExecutorService pool = Executors.newFixedThreadPool(producers);
        Future<?>[] running = new Future<?>[producers];
        long[][] found = new long[producers][];
        for (int number = 0; number < producers; number++) {
            int mine = number;
            running[number] = pool.submit(() -> {
                try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, topic, mine)) {
                    try {
                        producer.initTransactions();
                    } finally {
                        ready.countDown(); // or the others would wait for one that failed
                    }
                    ready.await();
                    commitFor(producer, topic, partitions, records, warmUpSeconds);
                    found[mine] = commitFor(producer, topic, partitions, records, seconds);
                }
                return null;
            });
        }
        try {
            for (Future<?> each : running) {
                each.get();
            }
        } finally {
            pool.shutdownNow(); // its threads would keep the program from ending with its error
        }
        long[] all = Arrays.stream(found).flatMapToLong(Arrays::stream).sorted().toArray();
        System.out.printf(
                "{\"per_second\": %.3f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}%n",
                all.length / seconds, percentile(all, 0.5), percentile(all, 0.99));
    }

    private static KafkaProducer<byte[], byte[]> producer(String bootstrap, String topic, int n) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("transactional.id", topic + "-" + n);
        properties.put("linger.ms", "5");
        properties.put("batch.size", "131072");
        ByteArraySerializer bytes = new ByteArraySerializer();
        return new KafkaProducer<>(properties, bytes, bytes);
    }

    /** Nanoseconds of each transaction that was committed in the time. */
    private static long[] commitFor(
            KafkaProducer<byte[], byte[]> producer,
            String topic, int partitions, int records, double seconds) {
        long[] found = new long[1024];
        int count = 0;
        byte[] value = new byte[RECORD_BYTES];
        long end = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < end) {
            long start = System.nanoTime();
            producer.beginTransaction();
            for (int number = 0; number < records; number++) {
                producer.send(new ProducerRecord<>(topic, number % partitions, null, value));
            }
            producer.commitTransaction();
            if (count == found.length) {
                found = Arrays.copyOf(found, 2 * count);
            }
            found[count++] = System.nanoTime() - start;
        }
        return Arrays.copyOf(found, count);
    }

    private static double percentile(long[] sorted, double share) {
        return sorted.length == 0 ? -1 : sorted[(int) ((sorted.length - 1) * share)] / 1e6;
    }
}
