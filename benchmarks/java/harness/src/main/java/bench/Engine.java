package bench;

/** A library under test, in the harness's terms. */
public interface Engine<E> {

    /** Takes one subscription: on every attribute named, {@code low <= value < high}; texts are equalities on their code. */
    void add(int subscription, int[] attributes, int[] lows, int[] highs) throws Exception;

    /** Called once after the last subscription; counts as building. */
    default void finish() throws Exception {}

    /** An event in the form the library takes; not timed. */
    E event(int[] values);

    /** Reports the number of every subscription that the event matches; timed. */
    void match(E event, Hits hits) throws Exception;
}
