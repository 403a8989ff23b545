import java.util.Set;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;

/** Prints Kafka's settings, one on a line: resource, name, type, default, allowed values, whether it changes live. */
public class KafkaSettings {
    static void print(String resource, ConfigDef settings, Set<String> dynamic) {
        for (var each : new TreeMap<>(settings.configKeys()).values()) {
            var hasDefault = each.defaultValue != null && each.defaultValue != ConfigDef.NO_DEFAULT_VALUE;
            System.out.println(String.join("\t",
                resource,
                each.name,
                each.type.name(),
                hasDefault ? ConfigDef.convertToString(each.defaultValue, each.type) : "null",
                String.valueOf(each.validator),
                String.valueOf(dynamic.contains(each.name)),
                String.valueOf(each.internalConfig)));
        }
    }

    public static void main(String[] arguments) {
        var dynamic = org.apache.kafka.server.config.DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS;
        print("broker", org.apache.kafka.server.config.AbstractKafkaConfig.CONFIG_DEF, dynamic);
        print("topic", org.apache.kafka.storage.internals.log.LogConfig.configDefCopy(), Set.of());
    }
}
