import java.time.Duration;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.streams.tests.SmokeTestDriver;

/**
 * `SmokeDriver BOOTSTRAP KEYS RECORDS SECONDS`: what `StreamsSmokeTest run` does with sizes of its own.
 * Writes so many records of each key in that time, then waits until the application's results of them
 * are complete and right, as with exactly_once_v2. Exit codes: 0 they are, 1 they are not.
 */
public class SmokeDriver {
    public static void main(String[] args) {
        int keys = Integer.parseInt(args[1]);
        int records = Integer.parseInt(args[2]);
        Duration time = Duration.ofSeconds(Long.parseLong(args[3]));
        Map<String, Set<Integer>> written = SmokeTestDriver.generate(args[0], keys, records, time);
        System.out.println("ALL-WRITTEN");
        var result = SmokeTestDriver.verify(args[0], written, records, true);
        // It looks first whether all is committed: asks where a topic ends, and then for its end of committed
        // records, which the application has moved on meanwhile.
        while (!result.passed() && result.result().contains("is larger than topic endOffset")) {
            result = SmokeTestDriver.verify(args[0], written, records, true);
        }
        System.exit(result.passed() ? 0 : 1);
    }
}
