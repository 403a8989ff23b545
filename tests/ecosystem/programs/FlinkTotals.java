// A Flink job in one JVM: adds up the amounts of each key, and writes every total to another topic exactly once. If the
// folder has a completed checkpoint, the job starts from the newest.

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.stream.Stream;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;

public class FlinkTotals {
    static class Orders implements KafkaRecordDeserializationSchema<Tuple2<String, Long>> {
        @Override
        public void deserialize(ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<String, Long>> out) {
            String key = new String(record.key(), StandardCharsets.UTF_8);
            out.collect(Tuple2.of(key, Long.parseLong(new String(record.value(), StandardCharsets.UTF_8))));
        }

        @Override
        public TypeInformation<Tuple2<String, Long>> getProducedType() {
            return Types.TUPLE(Types.STRING, Types.LONG);
        }
    }

    static KafkaRecordSerializationSchema<Tuple2<String, Long>> totals() {
        SerializationSchema<Tuple2<String, Long>> key = total -> total.f0.getBytes(StandardCharsets.UTF_8);
        SerializationSchema<Tuple2<String, Long>> value = total -> total.f1.toString().getBytes(StandardCharsets.UTF_8);
        return KafkaRecordSerializationSchema.<Tuple2<String, Long>>builder()
            .setTopic("totals") // by name, as the pooled naming of transactions needs it
            .setKeySerializationSchema(key)
            .setValueSerializationSchema(value)
            .build();
    }

    static long number(Path checkpoint) {
        return Long.parseLong(checkpoint.getParent().getFileName().toString().substring("chk-".length()));
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        Path checkpoints = Path.of(arguments[1]);
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.dir", checkpoints.toUri().toString());
        settings.setString("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION");
        settings.setString("restart-strategy.type", "fixed-delay");
        settings.setString("restart-strategy.fixed-delay.attempts", "1000");
        settings.setString("restart-strategy.fixed-delay.delay", "500 ms");
        try (Stream<Path> files = Files.walk(checkpoints)) {
            files.filter(each -> each.endsWith("_metadata"))
                .max(Comparator.comparingLong(FlinkTotals::number))
                .ifPresent(each -> {
                    System.out.println("starts from " + each.getParent().getFileName());
                    settings.setString("execution.state-recovery.path", each.getParent().toUri().toString());
                });
        }
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment(settings);
        environment.setParallelism(2);
        environment.enableCheckpointing(500);
        KafkaSource<Tuple2<String, Long>> orders = KafkaSource.<Tuple2<String, Long>>builder()
            .setBootstrapServers(bootstrap)
            .setTopics("orders")
            .setGroupId("totals")
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setDeserializer(new Orders())
            .build();
        KafkaSink<Tuple2<String, Long>> totals = KafkaSink.<Tuple2<String, Long>>builder()
            .setBootstrapServers(bootstrap)
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix("totals")
            .setTransactionNamingStrategy(TransactionNamingStrategy.valueOf(arguments[2]))
            .setProperty("transaction.timeout.ms", "60000")
            .setRecordSerializer(totals())
            .build();
        environment.fromSource(orders, WatermarkStrategy.noWatermarks(), "orders")
            .uid("orders")
            .map(order -> {
                Thread.sleep(1); // so that a kill comes in the middle
                return order;
            })
            .returns(Types.TUPLE(Types.STRING, Types.LONG))
            .keyBy(order -> order.f0)
            .sum(1)
            .uid("sum")
            .sinkTo(totals)
            .uid("totals");
        environment.execute("totals");
    }
}
