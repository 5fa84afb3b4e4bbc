import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeper.DigestType;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.LedgerHandleAdv;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.WriteFlag;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.util.AvailabilityOfEntriesOfLedger;

/**
 * Apache BookKeeper's client behind lines of text. `LedgerTool URI v2|v3 [KEY=VALUE...]` (settings of
 * the client) prints {"ready":true}, then answers each line of standard input, «command key=value ...»,
 * with one line of JSON: the outcome, or {"error":NAME,"code":N,"message":...}. `flood` also prints
 * {"event":"acked",...} while it goes on. Ends with its input; to kill it leaves its ledgers open.
 *
 * Entry n of a ledger has `size` bytes: n as eight bytes, then n, n+1, n+2 ... as bytes. harness/
 * ledger_tool.py is the same with quire's client.
 */
public class LedgerTool {
    static final int EVENT_EVERY = 20;

    static BookKeeper client;
    static final Map<Integer, LedgerHandle> handles = new HashMap<>();
    static final Map<Integer, CompletableFuture<Map<String, Object>>> polls = new HashMap<>();
    static int lastHandle = 0;
    static Thread flooding;
    static volatile boolean isFlooding;
    static volatile Map<String, Object> flooded;

    public static void main(String[] args) throws Exception {
        ClientConfiguration conf = new ClientConfiguration();
        conf.setMetadataServiceUri(args[0]);
        conf.setUseV2WireProtocol(args[1].equals("v2"));
        conf.setThrottleValue(0);
        conf.setZkTimeout(10_000);
        for (String setting : Arrays.asList(args).subList(2, args.length)) {
            int equals = setting.indexOf('=');
            conf.setProperty(setting.substring(0, equals), setting.substring(equals + 1));
        }
        client = new BookKeeper(conf);
        say(answer("ready", true));
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Map<String, Object> outcome;
            try {
                outcome = run(new Words(line));
            } catch (Throwable thrown) {
                outcome = failure(thrown);
            }
            say(outcome);
        }
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    /** A command's name and its arguments. */
    static final class Words {
        final String command;
        final Map<String, String> values = new HashMap<>();

        Words(String line) {
            String[] words = line.trim().split(" +");
            command = words[0];
            for (String word : Arrays.asList(words).subList(1, words.length)) {
                int equals = word.indexOf('=');
                values.put(word.substring(0, equals), word.substring(equals + 1));
            }
        }

        String text(String key, String otherwise) {
            return values.getOrDefault(key, otherwise);
        }

        long number(String key) {
            if (!values.containsKey(key)) {
                throw new IllegalArgumentException(command + " needs " + key);
            }
            return Long.parseLong(values.get(key));
        }

        long number(String key, long otherwise) {
            return values.containsKey(key) ? number(key) : otherwise;
        }

        boolean flag(String key) {
            return text(key, "false").equals("true");
        }

        DigestType digest() {
            return DigestType.valueOf(text("digest", "CRC32C"));
        }

        byte[] password() {
            return text("password", "").getBytes(StandardCharsets.UTF_8);
        }

        LedgerHandle handle() {
            LedgerHandle handle = handles.get((int) number("handle"));
            if (handle == null) {
                throw new IllegalArgumentException("no such handle");
            }
            return handle;
        }
    }

    static Map<String, Object> run(Words words) throws Exception {
        switch (words.command) {
            case "create": return create(words);
            case "append": return append(words);
            case "append_scattered": return appendScattered(words);
            case "flood": return flood(words);
            case "stop_flood": return stopFlood();
            case "force": return force(words);
            case "close": return close(words);
            case "open": return open(words);
            case "lac": return lac(words);
            case "read": return read(words);
            case "tail": return tail(words);
            case "poll": return poll(words);
            case "poll_result": return polls.remove((int) words.number("handle")).get(60, TimeUnit.SECONDS);
            case "metadata": return metadata(words);
            case "list_entries": return listEntries(words);
            case "delete": client.deleteLedger(words.number("ledger")); return answer("deleted", true);
            case "bench_add": return LedgerBench.add(words);
            case "bench_read": return LedgerBench.read(words);
            case "bench_recover": return LedgerBench.recover(words);
            default: throw new IllegalArgumentException("no command " + words.command);
        }
    }

    static Map<String, Object> create(Words words) throws Exception {
        int ensemble = (int) words.number("e"), write = (int) words.number("qw"), ack = (int) words.number("qa");
        Map<String, byte[]> custom = new HashMap<>();
        if (words.values.containsKey("custom")) {
            custom.put("custom", words.text("custom", "").getBytes(StandardCharsets.UTF_8));
        }
        LedgerHandle handle;
        if (words.flag("deferred")) {
            handle = (LedgerHandle) client.newCreateLedgerOp().withEnsembleSize(ensemble).withWriteQuorumSize(write)
                .withAckQuorumSize(ack).withDigestType(words.digest().toApiDigestType())
                .withPassword(words.password()).withCustomMetadata(custom)
                .withWriteFlags(WriteFlag.DEFERRED_SYNC).execute().get();
        } else if (words.flag("adv")) {
            handle = client.createLedgerAdv(ensemble, write, ack, words.digest(), words.password(), custom);
        } else {
            handle = client.createLedger(ensemble, write, ack, words.digest(), words.password(), custom);
        }
        handles.put(++lastHandle, handle);
        return answer("handle", lastHandle, "ledger", handle.getId());
    }

    static Map<String, Object> append(Words words) throws Exception {
        LedgerHandle handle = words.handle();
        int count = (int) words.number("count"), size = (int) words.number("size");
        Semaphore window = new Semaphore((int) words.number("window", 1000));
        Adds adds = new Adds(window);
        long first = handle.getLastAddPushed() + 1;
        for (int n = 0; n < count; n++) {
            window.acquire();
            adds.pending.incrementAndGet();
            handle.asyncAddEntry(payload(first + n, size), adds::done, null);
        }
        adds.waitForAll();
        return adds.outcome(handle);
    }

    /** LedgerHandleAdv: entries 0 to count-1, each ten in reverse order. */
    static Map<String, Object> appendScattered(Words words) throws Exception {
        LedgerHandleAdv handle = (LedgerHandleAdv) words.handle();
        int count = (int) words.number("count"), size = (int) words.number("size");
        Adds adds = new Adds(new Semaphore(count));
        for (int ten = 0; ten < count; ten += 10) {
            for (int n = Math.min(ten + 10, count) - 1; n >= ten; n--) {
                adds.window.acquire();
                adds.pending.incrementAndGet();
                handle.asyncAddEntry(n, payload(n, size), 0, size, adds::done, null);
            }
        }
        adds.waitForAll();
        return adds.outcome(handle);
    }

    /** What became of adds under way; entry ids and codes as they came. */
    static final class Adds {
        final Semaphore window;
        final AtomicInteger pending = new AtomicInteger();
        final AtomicLong lastAcked = new AtomicLong(-1);
        final AtomicInteger acked = new AtomicInteger();
        final AtomicInteger failed = new AtomicInteger();
        final AtomicInteger code = new AtomicInteger();
        final AtomicInteger misordered = new AtomicInteger();

        Adds(Semaphore window) {
            this.window = window;
        }

        void done(int rc, LedgerHandle handle, long entryId, Object context) {
            if (rc == BKException.Code.OK) {
                if (lastAcked.getAndSet(entryId) != entryId - 1 && acked.get() > 0) {
                    misordered.incrementAndGet();
                }
                acked.incrementAndGet();
            } else {
                failed.incrementAndGet();
                code.compareAndSet(0, rc);
            }
            window.release();
            synchronized (this) {
                if (pending.decrementAndGet() == 0) {
                    notifyAll();
                }
            }
        }

        synchronized void waitForAll() throws InterruptedException {
            while (pending.get() > 0) {
                wait();
            }
        }

        Map<String, Object> outcome(LedgerHandle handle) {
            return answer("acked", acked.get(), "last", lastAcked.get(), "failed", failed.get(), "code", code.get(),
                "misordered", misordered.get(), "lac", handle.getLastAddConfirmed(), "length", handle.getLength());
        }
    }

    static Map<String, Object> flood(Words words) {
        LedgerHandle handle = words.handle();
        int size = (int) words.number("size");
        Adds adds = new Adds(new Semaphore((int) words.number("window", 50)));
        isFlooding = true;
        flooding = new Thread(() -> {
            try {
                long entryId = handle.getLastAddPushed();
                while (isFlooding && adds.failed.get() == 0) {
                    adds.window.acquire();
                    adds.pending.incrementAndGet();
                    handle.asyncAddEntry(payload(++entryId, size), (rc, ledger, id, context) -> {
                        adds.done(rc, ledger, id, context);
                        if (rc == BKException.Code.OK && id % EVENT_EVERY == 0) {
                            say(answer("event", "acked", "entry", id));
                        }
                    }, null);
                }
                adds.waitForAll();
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
            flooded = adds.outcome(handle);
        });
        flooding.start();
        return answer("flooding", true);
    }

    static Map<String, Object> stopFlood() throws InterruptedException {
        isFlooding = false;
        flooding.join();
        return flooded;
    }

    static Map<String, Object> force(Words words) throws Exception {
        LedgerHandle handle = words.handle();
        long before = handle.getLastAddConfirmed();
        handle.force().get(30, TimeUnit.SECONDS);
        return answer("before", before, "lac", handle.getLastAddConfirmed());
    }

    static Map<String, Object> close(Words words) throws Exception {
        LedgerHandle handle = words.handle();
        handle.close();
        handles.remove((int) words.number("handle"));
        return answer("last", handle.getLastAddConfirmed(), "length", handle.getLength());
    }

    static Map<String, Object> open(Words words) throws Exception {
        long ledger = words.number("ledger");
        long start = System.nanoTime();
        LedgerHandle handle = words.text("recover", "true").equals("true")
            ? client.openLedger(ledger, words.digest(), words.password())
            : client.openLedgerNoRecovery(ledger, words.digest(), words.password());
        handles.put(++lastHandle, handle);
        return answer("handle", lastHandle, "ledger", ledger, "last", handle.getLastAddConfirmed(),
            "length", handle.getLength(), "closed", handle.isClosed(), "ms", millis(start));
    }

    static Map<String, Object> lac(Words words) throws Exception {
        LedgerHandle handle = words.handle();
        switch (words.text("mode", "read")) {
            case "read": return answer("lac", handle.readLastConfirmed());
            case "try": return answer("lac", handle.tryReadLastConfirmed());
            case "explicit": return answer("lac", handle.readExplicitLastConfirmed());
            default: throw new IllegalArgumentException("mode");
        }
    }

    static Map<String, Object> read(Words words) throws Exception {
        LedgerHandle handle = words.handle();
        long first = words.number("first"), last = words.number("last");
        Check check = new Check((int) words.number("size"), first);
        switch (words.text("mode", "entries")) {
            case "entries":
                for (long from = first; from <= last; from += 1000) {
                    check.entries(handle.readEntries(from, Math.min(last, from + 999)));
                }
                break;
            case "unconfirmed": check.entries(handle.readUnconfirmedEntries(first, last)); break;
            case "batch":
                while (check.next <= last) {
                    long left = last - check.next + 1;
                    check.entries(handle.batchReadEntries(check.next,
                        (int) Math.min(left, words.number("count_max", left)), words.number("size_max", 1 << 20)));
                    check.requests++;
                }
                break;
            default: throw new IllegalArgumentException("mode");
        }
        return check.outcome();
    }

    /** Entries as they come against what they must be. */
    static final class Check {
        final int size;
        long next;
        int requests;
        int good;
        List<Long> bad = new ArrayList<>();

        Check(int size, long first) {
            this.size = size;
            this.next = first;
        }

        void entries(Enumeration<LedgerEntry> entries) {
            while (entries.hasMoreElements()) {
                entry(entries.nextElement());
            }
        }

        void entry(LedgerEntry entry) {
            boolean isGood = entry.getEntryId() == next && Arrays.equals(entry.getEntry(), payload(next, size));
            if (isGood) {
                good++;
            } else {
                bad.add(entry.getEntryId());
            }
            next++;
        }

        Map<String, Object> outcome() {
            return answer("good", good, "bad", bad, "requests", requests);
        }
    }

    /** Follows the ledger by long polls, from entry `first` until `last` was read. */
    static Map<String, Object> tail(Words words) throws Exception {
        LedgerHandle handle = words.handle();
        long last = words.number("last"), deadline = System.nanoTime() + 60_000_000_000L;
        Check check = new Check((int) words.number("size"), words.number("first"));
        while (check.next <= last) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("entry " + check.next + " did not come");
            }
            check.requests++;
            CompletableFuture<LedgerEntry> polled = new CompletableFuture<>();
            handle.asyncReadLastConfirmedAndEntry(check.next, 1000, false, (rc, lac, entry, context) -> {
                if (rc == BKException.Code.OK) {
                    polled.complete(entry);
                } else {
                    polled.completeExceptionally(BKException.create(rc));
                }
            }, null);
            LedgerEntry entry = polled.get(30, TimeUnit.SECONDS);
            if (entry != null && entry.getEntryId() == check.next) {
                check.entry(entry);
            } else if (handle.getLastAddConfirmed() >= check.next) {
                check.entries(handle.readEntries(check.next, Math.min(last, handle.getLastAddConfirmed())));
            }
        }
        return check.outcome();
    }

    /** One long poll, in the background; its outcome is `poll_result`'s. */
    static Map<String, Object> poll(Words words) {
        CompletableFuture<Map<String, Object>> polled = new CompletableFuture<>();
        long start = System.nanoTime();
        int size = (int) words.number("size", 0);
        words.handle().asyncReadLastConfirmedAndEntry(words.number("entry"), words.number("timeout_ms"), false,
            (rc, lac, entry, context) -> polled.complete(answer("code", rc, "lac", lac,
                "entry", entry == null ? -1 : entry.getEntryId(), "good",
                entry != null && Arrays.equals(entry.getEntry(), payload(entry.getEntryId(), size)),
                "ms", millis(start))), null);
        polls.put((int) words.number("handle"), polled);
        return answer("polling", true);
    }

    static Map<String, Object> metadata(Words words) throws Exception {
        LedgerMetadata metadata = client.getLedgerManager().readLedgerMetadata(words.number("ledger"))
            .get(30, TimeUnit.SECONDS).getValue();
        List<Object> segments = new ArrayList<>();
        metadata.getAllEnsembles().forEach((first, bookies) -> {
            List<String> names = new ArrayList<>();
            for (BookieId bookie : bookies) {
                names.add(bookie.toString());
            }
            segments.add(Arrays.asList(first, names));
        });
        byte[] custom = metadata.getCustomMetadata().get("custom");
        return answer("state", metadata.getState().name(), "last", metadata.isClosed() ? metadata.getLastEntryId() : -1,
            "length", metadata.getLength(), "segments", segments, "digest", metadata.getDigestType().name(),
            "custom", custom == null ? "" : new String(custom, StandardCharsets.UTF_8));
    }

    /** Which entries of a ledger a bookie says it has: how many, and whether it has all up to `last`. */
    static Map<String, Object> listEntries(Words words) throws Exception {
        // It owns nothing when it is given a client.
        AvailabilityOfEntriesOfLedger entries = new BookKeeperAdmin(client).asyncGetListOfEntriesOfLedger(
            BookieId.parse(words.text("bookie", "")), words.number("ledger")).get(30, TimeUnit.SECONDS);
        List<Long> missing = new ArrayList<>();
        for (long entry = 0; entry <= words.number("last"); entry++) {
            if (!entries.isEntryAvailable(entry)) {
                missing.add(entry);
            }
        }
        return answer("count", entries.getTotalNumOfAvailableEntries(), "missing", missing);
    }

    static byte[] payload(long entryId, int size) {
        ByteBuffer buffer = ByteBuffer.allocate(Math.max(size, 8));
        buffer.putLong(entryId);
        for (int n = 0; n < size - 8; n++) {
            buffer.put((byte) (entryId + n));
        }
        return Arrays.copyOf(buffer.array(), size);
    }

    static double millis(long start) {
        return (System.nanoTime() - start) / 1e6;
    }

    static Map<String, Object> failure(Throwable thrown) {
        Throwable cause = thrown;
        while (cause.getCause() != null && !(cause instanceof org.apache.bookkeeper.client.api.BKException)) {
            cause = cause.getCause();
        }
        int code = cause instanceof org.apache.bookkeeper.client.api.BKException
            ? ((org.apache.bookkeeper.client.api.BKException) cause).getCode() : 0;
        return answer("error", cause.getClass().getSimpleName(), "code", code, "message", String.valueOf(cause));
    }

    static Map<String, Object> answer(Object... pairs) {
        Map<String, Object> answer = new LinkedHashMap<>();
        for (int n = 0; n < pairs.length; n += 2) {
            answer.put((String) pairs[n], pairs[n + 1]);
        }
        return Collections.unmodifiableMap(answer);
    }

    static void say(Map<String, Object> answer) {
        StringBuilder out = new StringBuilder();
        json(out, answer);
        synchronized (System.out) {
            System.out.println(out);
            System.out.flush();
        }
    }

    static void json(StringBuilder out, Object value) {
        if (value instanceof Map) {
            String comma = "{";
            for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                out.append(comma);
                json(out, each.getKey());
                out.append(':');
                json(out, each.getValue());
                comma = ",";
            }
            out.append(((Map<?, ?>) value).isEmpty() ? "{}" : "}");
        } else if (value instanceof List) {
            String comma = "[";
            for (Object each : (List<?>) value) {
                out.append(comma);
                json(out, each);
                comma = ",";
            }
            out.append(((List<?>) value).isEmpty() ? "[]" : "]");
        } else if (value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else {
            out.append('"');
            for (char c : String.valueOf(value).toCharArray()) {
                if (c == '"' || c == '\\') {
                    out.append('\\').append(c);
                } else if (c < ' ') {
                    out.append(String.format("\\u%04x", (int) c));
                } else {
                    out.append(c);
                }
            }
            out.append('"');
        }
    }
}
