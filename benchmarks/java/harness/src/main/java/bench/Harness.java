package bench;

import com.sun.management.OperatingSystemMXBean;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/**
 * Builds an engine from a workload, times it over all events, and leaves the answers beside it.
 *
 * <p>Arguments: workload file, answers file (counts as ints, then sums as longs), seconds for building,
 * seconds for matching. Prints one line of JSON. An engine that is not built in time ends with {@code built} short of
 * the subscriptions and nothing matched.
 */
public final class Harness {

    /** Unmeasured first rounds, for the JIT; cut short by the limit on matching. */
    private static final int WARM_UP_EVENTS = 500;
    private static final int ROUNDS_MAX = 3;

    private Harness() {}

    public static <E> void run(Engine<E> engine, String[] arguments) throws Exception {
        Workload workload = new Workload(Path.of(arguments[0]));
        long buildLimit = seconds(arguments[2]);
        long matchLimit = seconds(arguments[3]);
        int wanted = workload.conditions();
        long start = processorTime();
        int built = build(engine, workload, System.nanoTime() + buildLimit);
        double buildSeconds = since(start);
        if (built < wanted) {
            print(built, buildSeconds, 0, 0);
            return;
        }
        List<E> events = new ArrayList<>();
        for (int event = 0; event < workload.events.length; event++) {
            events.add(engine.event(workload, event));
        }
        Hits[] hits = new Hits[events.size()];
        long deadline = System.nanoTime() + matchLimit;
        match(engine, events.subList(0, Math.min(WARM_UP_EVENTS, events.size())), hits, deadline);
        int matched = match(engine, events, hits, deadline);
        double best = lastRound;
        for (int round = 1; round < ROUNDS_MAX && matched == events.size() && System.nanoTime() < deadline; round++) {
            if (match(engine, events, hits, deadline) == matched) {
                best = Math.min(best, lastRound);
            }
        }
        write(Path.of(arguments[1]), hits, matched);
        print(built, buildSeconds, matched, best);
    }

    private static double lastRound;

    private static <E> int build(Engine<E> engine, Workload workload, long deadline) throws Exception {
        int count = workload.conditions();
        int from = 0;
        for (int i = 0; i < count; i++) {
            if (System.nanoTime() > deadline) {
                return i;
            }
            int to = from + 1;
            while (to < workload.owners.length && workload.owners[to] == i) {
                to++;
            }
            engine.add(workload, i, from, to);
            from = to;
        }
        engine.finish();
        return count;
    }

    private static <E> int match(Engine<E> engine, List<E> events, Hits[] hits, long deadline) throws Exception {
        long start = processorTime();
        int matched = 0;
        for (E event : events) {
            if (System.nanoTime() > deadline) {
                break;
            }
            Hits found = new Hits();
            engine.match(event, found);
            hits[matched++] = found;
        }
        lastRound = since(start);
        return matched;
    }

    private static void write(Path file, Hits[] hits, int count) throws IOException {
        ByteBuffer out = ByteBuffer.allocate(count * (Integer.BYTES + Long.BYTES)).order(ByteOrder.LITTLE_ENDIAN);
        for (int i = 0; i < count; i++) {
            out.putInt(hits[i].count);
        }
        for (int i = 0; i < count; i++) {
            out.putLong(hits[i].sum);
        }
        Files.write(file, out.array());
    }

    private static long seconds(String text) {
        return (long) (Double.parseDouble(text) * 1e9);
    }

    private static double since(long start) {
        return (processorTime() - start) / 1e9;
    }

    /** Of all threads: on one pinned core that is the time an idle machine takes. */
    private static long processorTime() {
        return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private static void print(int built, double buildSeconds, int events, double seconds) {
        System.gc();
        long heap = Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
        System.out.printf(
                "{\"built\": %d, \"build_s\": %.4f, \"events\": %d, \"match_s\": %.6f, \"heap_bytes\": %d}%n",
                built, buildSeconds, events, seconds, heap);
    }
}
