package bench;

import java.io.DataInputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * Subscriptions and events as flat arrays, read from one file of little-endian ints: four sizes
 * (subscriptions, sides, events, attributes), then starts, attributes, lows, highs and the events row by row.
 */
public final class Workload {

    /** The first attributes are numbers, the rest texts "v" + code. */
    public static final int NUMBERS = 20;
    public static final int UNBOUNDED_LOW = Integer.MIN_VALUE;
    public static final int UNBOUNDED_HIGH = Integer.MAX_VALUE;

    final int[] starts;
    final int[] attributes;
    final int[] lows;
    final int[] highs;
    final int[][] events;

    Workload(Path file) throws IOException {
        IntBuffer numbers = ints(file);
        int subscriptions = numbers.get();
        int sides = numbers.get();
        int eventCount = numbers.get();
        int width = numbers.get();
        starts = take(numbers, subscriptions + 1);
        attributes = take(numbers, sides);
        lows = take(numbers, sides);
        highs = take(numbers, sides);
        events = new int[eventCount][];
        for (int event = 0; event < eventCount; event++) {
            events[event] = take(numbers, width);
        }
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
