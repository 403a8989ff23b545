// A Kafka Streams application: adds up the amounts of each key into a table, and writes every total to another topic.

import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

public class Totals {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("processing.guarantee", arguments[1]);
        settings.put("state.dir", arguments[2]);
        settings.put("application.id", "totals");
        settings.put("num.standby.replicas", "1");
        settings.put("replication.factor", "1");
        settings.put("commit.interval.ms", "200");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("consumer.session.timeout.ms", "6000");
        settings.put("consumer.auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("orders", Consumed.with(Serdes.String(), Serdes.String()))
            .mapValues(value -> Long.parseLong(value))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.Long()))
            .reduce(Long::sum)
            .toStream()
            .mapValues(total -> String.valueOf(total))
            .to("totals", Produced.with(Serdes.String(), Serdes.String()));
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setUncaughtExceptionHandler(error -> StreamThreadExceptionResponse.REPLACE_THREAD);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }
}
