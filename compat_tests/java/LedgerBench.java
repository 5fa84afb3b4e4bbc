import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;

/** The commands of LedgerTool that bench/bookies.py measures with. Times in milliseconds. */
final class LedgerBench {
    private LedgerBench() {}

    /** `seconds` of adds of `size` bytes, `window` in flight; latencies from call to callback. */
    static Map<String, Object> add(LedgerTool.Words words) throws Exception {
        LedgerHandle handle = words.handle();
        int size = (int) words.number("size"), window = (int) words.number("window");
        byte[] payload = LedgerTool.payload(0, size);
        Semaphore room = new Semaphore(window);
        AtomicInteger done = new AtomicInteger(), failed = new AtomicInteger(), code = new AtomicInteger();
        int limit = 2_000_000;
        int[] micros = new int[limit];
        long start = System.nanoTime(), end = start + (long) (Double.parseDouble(words.text("seconds", "3")) * 1e9);
        int sent = 0;
        while (sent < limit && failed.get() == 0) {
            long now = System.nanoTime();
            if (now >= end) {
                break;
            }
            room.acquire();
            long begun = System.nanoTime();
            sent++;
            handle.asyncAddEntry(payload, (rc, ledger, entryId, context) -> {
                if (rc == BKException.Code.OK) {
                    micros[done.getAndIncrement()] = (int) ((System.nanoTime() - begun) / 1000);
                } else {
                    failed.incrementAndGet();
                    code.compareAndSet(0, rc);
                }
                room.release();
            }, null);
        }
        room.acquire(window);
        double seconds = (System.nanoTime() - start) / 1e9;
        int count = done.get();
        Arrays.sort(micros, 0, count);
        return LedgerTool.answer("count", count, "failed", failed.get(), "code", code.get(), "seconds", seconds,
            "p50_ms", count == 0 ? 0 : micros[count / 2] / 1e3,
            "p99_ms", count == 0 ? 0 : micros[(int) (count * 0.99)] / 1e3);
    }

    /** Entries 0 to last, in runs of `batch`; mode «entries» (one read each) or «batch». */
    static Map<String, Object> read(LedgerTool.Words words) throws Exception {
        LedgerHandle handle = words.handle();
        long last = words.number("last"), next = 0, size = 0;
        int batch = (int) words.number("batch", 100);
        boolean isBatch = words.text("mode", "entries").equals("batch");
        long start = System.nanoTime();
        while (next <= last) {
            long until = Math.min(last, next + batch - 1);
            var entries = isBatch
                ? handle.batchReadEntries(next, (int) (until - next + 1), 5 << 20)
                : handle.readEntries(next, until);
            while (entries.hasMoreElements()) {
                LedgerEntry entry = entries.nextElement();
                size += entry.getEntryBuffer().readableBytes();
                entry.getEntryBuffer().release();
                next++;
            }
        }
        return LedgerTool.answer("count", next, "bytes", size, "seconds", (System.nanoTime() - start) / 1e9);
    }

    /** Makes `ledgers` ledgers of `count` entries, leaves them open, recovers each; one time each. */
    static Map<String, Object> recover(LedgerTool.Words words) throws Exception {
        int ledgers = (int) words.number("ledgers"), count = (int) words.number("count");
        double[] millis = new double[ledgers];
        for (int n = 0; n < ledgers; n++) {
            LedgerHandle handle = LedgerTool.client.createLedger(3, 3, 2, words.digest(), words.password());
            LedgerTool.Adds adds = new LedgerTool.Adds(new Semaphore(count));
            for (int entry = 0; entry < count; entry++) {
                adds.pending.incrementAndGet();
                handle.asyncAddEntry(LedgerTool.payload(entry, 1000), adds::done, null);
            }
            adds.waitForAll();
            long start = System.nanoTime();
            LedgerHandle opened = LedgerTool.client.openLedger(handle.getId(), words.digest(), words.password());
            millis[n] = LedgerTool.millis(start);
            if (opened.getLastAddConfirmed() != count - 1) {
                throw new IllegalStateException("recovered up to " + opened.getLastAddConfirmed());
            }
            opened.close();
            LedgerTool.client.deleteLedger(handle.getId());
        }
        Arrays.sort(millis);
        return LedgerTool.answer("p50_ms", millis[ledgers / 2], "max_ms", millis[ledgers - 1]);
    }
}
