package bench;

/** What one event matched, as far as it is compared with the other engines: how many, and their sum. */
public final class Hits {
    int count;
    long sum;

    public void hit(int subscription) {
        count++;
        sum += subscription;
    }
}
