package bench.vespa;

import bench.Engine;
import bench.Harness;
import bench.Hits;
import bench.Workload;
import com.yahoo.document.predicate.Predicate;
import com.yahoo.search.predicate.Config;
import com.yahoo.search.predicate.PredicateIndex;
import com.yahoo.search.predicate.PredicateIndexBuilder;
import com.yahoo.search.predicate.PredicateQuery;

/** Vespa's predicate search library: predicates as text, events as queries of features. */
public final class Main implements Engine<PredicateQuery> {

    private static final int ARITY = 8; // The library's own default: size of the index against speed of the search.
    private static final int VALUE_MAX = 999_999;

    // Telling the library the range of the values makes its index smaller and its search faster.
    private final PredicateIndexBuilder builder =
            new PredicateIndexBuilder(
                    new Config.Builder().setArity(ARITY).setLowerBound(0).setUpperBound(VALUE_MAX).build());
    private PredicateIndex.Searcher searcher;

    public static void main(String[] arguments) throws Exception {
        Harness.run(new Main(), arguments);
    }

    @Override
    public void add(int subscription, int[] attributes, int[] lows, int[] highs) {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < attributes.length; i++) {
            text.append(i == 0 ? "" : " and ").append(Workload.name(attributes[i])).append(" in ");
            text.append(Workload.isNumber(attributes[i]) ? range(lows[i], highs[i]) : "['v" + lows[i] + "']");
        }
        builder.indexDocument(subscription, Predicate.fromString(text.toString()));
    }

    private static String range(int low, int high) {
        String from = low == Workload.UNBOUNDED_LOW ? "" : Integer.toString(low);
        String to = high == Workload.UNBOUNDED_HIGH ? "" : Integer.toString(high - 1);
        return "[" + from + ".." + to + "]";
    }

    @Override
    public void finish() {
        PredicateIndex index = builder.build();
        index.rebuildPostingListCache();
        searcher = index.searcher();
    }

    @Override
    public PredicateQuery event(int[] values) {
        PredicateQuery query = new PredicateQuery();
        for (int a = 0; a < values.length; a++) {
            if (Workload.isNumber(a)) {
                query.addRangeFeature(Workload.name(a), values[a]);
            } else {
                query.addFeature(Workload.name(a), "v" + values[a]);
            }
        }
        return query;
    }

    @Override
    public void match(PredicateQuery query, Hits hits) {
        searcher.search(query).forEach(hit -> hits.hit(hit.getDocId()));
    }
}
