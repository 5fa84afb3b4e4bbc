import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import javax.security.auth.x500.X500Principal;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * What Java makes of a certificate's subject, and Kafka of its text: a line for each argument, in
 * hexadecimals of UTF-8, or «!» and why not. Arguments are «name:HEX», the DER of a Name, and
 * «rule:HEX:HEX», rules and a text in UTF-8.
 */
public final class Names {
    public static void main(String[] arguments) {
        for (String argument : arguments) {
            System.out.println(answer(argument.split(":", -1)));
        }
    }

    private static String answer(String[] parts) {
        try {
            byte[] first = HexFormat.of().parseHex(parts[1]);
            if (parts[0].equals("name")) {
                return hex(new X500Principal(first).getName(X500Principal.RFC2253));
            }
            String text = new String(HexFormat.of().parseHex(parts[2]), StandardCharsets.UTF_8);
            String rules = new String(first, StandardCharsets.UTF_8);
            return hex(SslPrincipalMapper.fromRules(rules).getName(text));
        } catch (Exception error) {
            return "!" + error.getClass().getSimpleName();
        }
    }

    private static String hex(String text) {
        return HexFormat.of().formatHex(text.getBytes(StandardCharsets.UTF_8));
    }
}
