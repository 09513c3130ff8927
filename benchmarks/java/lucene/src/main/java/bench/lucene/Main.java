package bench.lucene;

import bench.Engine;
import bench.Harness;
import bench.Hits;
import bench.Workload;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.NumericDocValuesField;
import org.apache.lucene.document.StringField;
import org.apache.lucene.monitor.Monitor;
import org.apache.lucene.monitor.MonitorConfiguration;
import org.apache.lucene.monitor.MonitorQuery;
import org.apache.lucene.monitor.QueryMatch;
import org.apache.lucene.monitor.TermFilteredPresearcher;

/**
 * Lucene's Monitor, the engine of stored queries behind the percolators of Elasticsearch and OpenSearch.
 *
 * <p>Its presearcher picks candidates by terms, and an interval has none. So each box names the bins of its most
 * selective side as terms, of which an event has one per attribute. One event at a time: a batch runs each of its
 * candidates over all of its events, and batches of 50 and 2,000 were no faster.
 */
public final class Main implements Engine<Document> {

    static final String KEY = "key";
    static final int NULL = Integer.MIN_VALUE + 1; // An absent value.
    static final String[] FIELDS = IntStream.range(0, 64).mapToObj(a -> "v" + a).toArray(String[]::new);
    private static final int REGISTERED_AT_ONCE = 50_000;

    private final Monitor monitor;
    private final List<MonitorQuery> waiting = new ArrayList<>();

    private Main() throws IOException {
        // Nothing is deleted, so that purging would only take time from what is measured.
        MonitorConfiguration configuration = new MonitorConfiguration().setPurgeFrequency(1, TimeUnit.DAYS);
        configuration.setQueryUpdateBufferSize(REGISTERED_AT_ONCE);
        monitor = new Monitor(new StandardAnalyzer(), new TermFilteredPresearcher(), configuration);
    }

    public static void main(String[] arguments) throws Exception {
        Harness.run(new Main(), arguments);
        System.exit(0); // The monitor's thread would keep the process.
    }

    @Override
    public void add(int subscription, int[] attributes, int[] lows, int[] highs) {
        throw new AssertionError("conditions come as boxes");
    }

    @Override
    public void add(Workload workload, int condition, int from, int to) throws IOException {
        waiting.add(new MonitorQuery(Integer.toString(condition), new ConditionQuery(workload, from, to)));
        if (waiting.size() >= REGISTERED_AT_ONCE) {
            finish();
        }
    }

    @Override
    public void finish() throws IOException {
        monitor.register(waiting);
        waiting.clear();
    }

    @Override
    public Document event(int[] values) {
        throw new AssertionError("events come with their keys");
    }

    @Override
    public Document event(Workload workload, int event) {
        Document document = new Document();
        int[] values = workload.events[event];
        for (int a = 0; a < values.length; a++) {
            if (values[a] != NULL) {
                document.add(new NumericDocValuesField(FIELDS[a], values[a]));
                document.add(new StringField(KEY, Integer.toString(workload.eventKeys[event][a]), Field.Store.NO));
            }
        }
        return document;
    }

    @Override
    public void match(Document event, Hits hits) throws IOException {
        for (QueryMatch match : monitor.match(event, QueryMatch.SIMPLE_MATCHER).getMatches()) {
            hits.hit(Integer.parseInt(match.getQueryId()));
        }
    }
}
