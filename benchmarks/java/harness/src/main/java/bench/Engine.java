package bench;

import java.util.Arrays;

/** A library under test, in the harness's terms. */
public interface Engine<E> {

    /** Takes one subscription: on every attribute named, {@code low <= value < high}; texts are equalities on their code. */
    void add(int subscription, int[] attributes, int[] lows, int[] highs) throws Exception;

    /** Takes the boxes {@code from} to {@code to - 1} as one condition; an engine that knows only sides gets them. */
    default void add(Workload workload, int condition, int from, int to) throws Exception {
        int start = workload.starts[from];
        int end = workload.starts[from + 1];
        add(
                condition,
                Arrays.copyOfRange(workload.attributes, start, end),
                Arrays.copyOfRange(workload.lows, start, end),
                Arrays.copyOfRange(workload.highs, start, end));
    }

    /** Called once after the last subscription; counts as building. */
    default void finish() throws Exception {}

    /** An event in the form the library takes; not timed. */
    E event(int[] values);

    /** The same for an engine that looks at more than values. */
    default E event(Workload workload, int event) {
        return event(workload.events[event]);
    }

    /** Reports the number of every subscription that the event matches; timed. */
    void match(E event, Hits hits) throws Exception;
}
