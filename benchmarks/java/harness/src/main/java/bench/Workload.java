package bench;

import java.io.DataInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Conditions and events as flat arrays, read from one file of little-endian ints: seven sizes (boxes, sides, events,
 * attributes, rows filed, sets, codes in sets), then starts, attributes, lows and highs of the boxes' sides, and the events row by row;
 * then what engines that need a selective term are helped with: where the keys of each box begin, these keys, and the
 * events' keys; then the condition of each box, its negated side and its set, and the sets.
 *
 * <p>A plain subscription is a condition of one box with nothing but sides.
 */
public final class Workload {

    /** The first attributes are numbers, the rest texts "v" + code. */
    public static final int NUMBERS = 20;
    public static final int UNBOUNDED_LOW = Integer.MIN_VALUE;
    public static final int UNBOUNDED_HIGH = Integer.MAX_VALUE;

    public final int[] starts;
    public final int[] attributes;
    public final int[] lows;
    public final int[] highs;
    public final int[][] events;

    /** Box b is filed under {@code keys[filed[b]] … keys[filed[b + 1] - 1]}; event e has one key per attribute. */
    public final int[] filed;
    public final int[] keys;
    public final int[][] eventKeys;

    /** Condition of each box, in order; -1 as an attribute or set where a box has none. */
    public final int[] owners;
    public final int[] notAttributes;
    public final int[] notLows;
    public final int[] notHighs;
    public final int[] setAttributes;
    public final int[] sets;
    public final int[] setStarts;
    public final int[] codes;

    Workload(Path file) throws IOException {
        IntBuffer numbers = ints(file);
        int subscriptions = numbers.get();
        int sides = numbers.get();
        int eventCount = numbers.get();
        int width = numbers.get();
        int filings = numbers.get();
        int setCount = numbers.get();
        int codeCount = numbers.get();
        starts = take(numbers, subscriptions + 1);
        attributes = take(numbers, sides);
        lows = take(numbers, sides);
        highs = take(numbers, sides);
        events = rows(numbers, eventCount, width);
        filed = take(numbers, subscriptions + 1);
        keys = take(numbers, filings);
        eventKeys = rows(numbers, eventCount, width);
        owners = take(numbers, subscriptions);
        notAttributes = take(numbers, subscriptions);
        notLows = take(numbers, subscriptions);
        notHighs = take(numbers, subscriptions);
        setAttributes = take(numbers, subscriptions);
        sets = take(numbers, subscriptions);
        setStarts = take(numbers, setCount + 1);
        codes = take(numbers, codeCount);
    }

    /** How many conditions there are. */
    public int conditions() {
        return owners[owners.length - 1] + 1;
    }

    private static int[][] rows(IntBuffer from, int count, int width) {
        int[][] rows = new int[count][];
        for (int row = 0; row < count; row++) {
            rows[row] = take(from, width);
        }
        return rows;
    }

    public static String name(int attribute) {
        return attribute < NUMBERS ? "n" + attribute : "s" + (attribute - NUMBERS);
    }

    public static boolean isNumber(int attribute) {
        return attribute < NUMBERS;
    }

    private static IntBuffer ints(Path file) throws IOException {
        try (DataInputStream in = new DataInputStream(Files.newInputStream(file))) {
            return ByteBuffer.wrap(in.readAllBytes()).order(ByteOrder.LITTLE_ENDIAN).asIntBuffer();
        }
    }

    private static int[] take(IntBuffer from, int count) {
        int[] taken = new int[count];
        from.get(taken);
        return taken;
    }
}
