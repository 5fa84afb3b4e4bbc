import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Kafka's command line tools, one after another, in one process. Prints {"started":true}, then answers
 * each line of standard input, {"do":"run","main":CLASS,"arguments":[...]}, with {"code":N,"said":TEXT}:
 * the tool's exit code, and its standard output and error together. A tool that would end the process
 * ends itself alone.
 */
public final class OperatorSession {
    private static final ObjectMapper JSON = new ObjectMapper();
    /** The code that the tool ended with first: some catch whatever is thrown, and end once more. */
    private static Integer code;

    /** What stands for the end of the process. */
    private static final class Ended extends RuntimeException {
        Ended(int code) {
            super("ended", null, false, false);
            if (OperatorSession.code == null) {
                OperatorSession.code = code;
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        PrintStream error = System.err;
        Exit.setExitProcedure((code, message) -> { throw new Ended(code); });
        Exit.setHaltProcedure((code, message) -> { throw new Ended(code); });
        out.println(JSON.writeValueAsString(Map.of("started", true)));
        out.flush();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream all = new PrintStream(said, true, StandardCharsets.UTF_8);
            System.setOut(all);
            System.setErr(all);
            code = null;
            int ended;
            String asked = line;
            try {
                ended = scala.Console.withOut(all, () -> scala.Console.withErr(all, () -> run(asked, all)));
            } finally {
                System.setOut(out);
                System.setErr(error);
            }
            String text = said.toString(StandardCharsets.UTF_8);
            out.println(JSON.writeValueAsString(Map.of("code", code == null ? ended : code, "said", text)));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static int run(String line, PrintStream all) {
        try {
            JsonNode asked = JSON.readTree(line);
            List<String> words = new ArrayList<>();
            asked.get("arguments").forEach(word -> words.add(word.asText()));
            Class.forName(asked.get("main").asText())
                .getMethod("main", String[].class)
                .invoke(null, (Object) words.toArray(new String[0]));
            return 0;
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                thrown.getCause().printStackTrace(all);
            }
            return 1;
        } catch (Exception thrown) {
            thrown.printStackTrace(all);
            return 1;
        }
    }
}
