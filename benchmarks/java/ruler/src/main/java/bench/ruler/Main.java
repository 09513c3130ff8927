package bench.ruler;

import bench.Engine;
import bench.Harness;
import bench.Hits;
import bench.Workload;
import software.amazon.event.ruler.Machine;

/** AWS event-ruler: rules and events as JSON text, the only form both are documented in. */
public final class Main implements Engine<String> {

    private final Machine machine = new Machine();

    public static void main(String[] arguments) throws Exception {
        Harness.run(new Main(), arguments);
    }

    @Override
    public void add(int subscription, int[] attributes, int[] lows, int[] highs) throws Exception {
        StringBuilder rule = new StringBuilder("{");
        for (int i = 0; i < attributes.length; i++) {
            String pattern = Workload.isNumber(attributes[i]) ? range(lows[i], highs[i]) : "\"v" + lows[i] + "\"";
            rule.append(i == 0 ? "" : ",").append('"').append(Workload.name(attributes[i])).append("\":[");
            rule.append(pattern).append(']');
        }
        machine.addRule(Integer.toString(subscription), rule.append('}').toString());
    }

    private static String range(int low, int high) {
        String from = low == Workload.UNBOUNDED_LOW ? "" : "\">=\"," + low;
        String to = high == Workload.UNBOUNDED_HIGH ? "" : "\"<\"," + high;
        return "{\"numeric\":[" + from + (from.isEmpty() || to.isEmpty() ? "" : ",") + to + "]}";
    }

    @Override
    public String event(int[] values) {
        StringBuilder event = new StringBuilder("{");
        for (int a = 0; a < values.length; a++) {
            event.append(a == 0 ? "" : ",").append('"').append(Workload.name(a)).append("\":");
            event.append(Workload.isNumber(a) ? "" + values[a] : "\"v" + values[a] + "\"");
        }
        return event.append('}').toString();
    }

    @Override
    public void match(String event, Hits hits) throws Exception {
        for (String rule : machine.rulesForJSONEvent(event)) {
            hits.hit(Integer.parseInt(rule));
        }
    }
}
