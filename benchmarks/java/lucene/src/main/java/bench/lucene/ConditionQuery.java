package bench.lucene;

import bench.Workload;
import java.io.IOException;
import java.util.Arrays;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.NumericDocValues;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.ConstantScoreScorer;
import org.apache.lucene.search.ConstantScoreWeight;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.QueryVisitor;
import org.apache.lucene.search.ScoreMode;
import org.apache.lucene.search.Scorer;
import org.apache.lucene.search.ScorerSupplier;
import org.apache.lucene.search.Weight;

/**
 * One condition over the doc values of an event. The presearcher is shown the keys its boxes are filed under.
 *
 * <p>The same as a BooleanQuery of terms and point ranges took eight times as long: the monitor rewrites a query for
 * every event, and a rewritten BooleanQuery is a new one. This one is never rewritten and stops at the first side that fails.
 */
final class ConditionQuery extends Query {

    private final Workload workload;
    private final int from;
    private final int to;

    ConditionQuery(Workload workload, int from, int to) {
        this.workload = workload;
        this.from = from;
        this.to = to;
    }

    @Override
    public void visit(QueryVisitor visitor) {
        QueryVisitor any = visitor.getSubVisitor(Occur.SHOULD, this);
        for (int i = workload.filed[from]; i < workload.filed[to]; i++) {
            any.consumeTerms(this, new Term(Main.KEY, Integer.toString(workload.keys[i])));
        }
    }

    @Override
    public Weight createWeight(IndexSearcher searcher, ScoreMode mode, float boost) {
        return new ConstantScoreWeight(this, boost) {
            @Override
            public ScorerSupplier scorerSupplier(LeafReaderContext context) throws IOException {
                if (!anyBox(context.reader())) {
                    return null;
                }
                Scorer scorer = new ConstantScoreScorer(score(), mode, DocIdSetIterator.all(1));
                return new DefaultScorerSupplier(scorer);
            }

            @Override
            public boolean isCacheable(LeafReaderContext context) {
                return false;
            }
        };
    }

    /** Whether the only document there is matches one of the boxes. */
    private boolean anyBox(LeafReader reader) throws IOException {
        for (int box = from; box < to; box++) {
            if (inside(reader, box) && outside(reader, box) && inSet(reader, box)) {
                return true;
            }
        }
        return false;
    }

    private boolean inside(LeafReader reader, int box) throws IOException {
        for (int side = workload.starts[box]; side < workload.starts[box + 1]; side++) {
            long value = value(reader, workload.attributes[side]);
            if (value == Main.NULL || value < workload.lows[side] || value >= workload.highs[side]) {
                return false;
            }
        }
        return true;
    }

    private boolean outside(LeafReader reader, int box) throws IOException {
        if (workload.notAttributes[box] < 0) {
            return true;
        }
        long value = value(reader, workload.notAttributes[box]);
        return value != Main.NULL && (value < workload.notLows[box] || value >= workload.notHighs[box]);
    }

    private boolean inSet(LeafReader reader, int box) throws IOException {
        int set = workload.sets[box];
        if (set < 0) {
            return true;
        }
        int value = (int) value(reader, workload.setAttributes[box]);
        return Arrays.binarySearch(workload.codes, workload.setStarts[set], workload.setStarts[set + 1], value) >= 0;
    }

    private static long value(LeafReader reader, int attribute) throws IOException {
        NumericDocValues values = DocValues.getNumeric(reader, Main.FIELDS[attribute]);
        return values.advanceExact(0) ? values.longValue() : Main.NULL;
    }

    @Override
    public String toString(String field) {
        return "boxes " + from + " to " + (to - 1);
    }

    @Override
    public boolean equals(Object other) {
        return sameClassAs(other) && ((ConditionQuery) other).from == from;
    }

    @Override
    public int hashCode() {
        return from;
    }
}
