// Tellers of Kafka's own clients: see tests/chaos/teller.py, whose arguments and lines these are.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.InvalidOffsetException;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaTeller implements Runnable {
    static final int ACCOUNTS = 100, AMOUNT_MAX = 1000, ORDERS_MAX = 3, PACE_MS = 150, START_OVER_MS = 300;
    static final double ABORT_CHANCE = 0.1;
    static volatile boolean ended = false;

    final String bootstrap, group, orders, accounts, mode, name;
    final int partitions, number;
    final Random chance;
    int transactions = 0, starts = 0;

    JavaTeller(String[] arguments, int number) {
        bootstrap = arguments[0];
        group = arguments[1];
        orders = arguments[2];
        accounts = arguments[3];
        partitions = Integer.parseInt(arguments[4]);
        mode = arguments[7];
        name = arguments[8];
        this.number = number;
        chance = new Random((name + number).hashCode());
    }

    static synchronized void say(String event, String... details) {
        StringBuilder line = new StringBuilder("{\"event\": \"" + event + "\"");
        for (int at = 0; at < details.length; at += 2) {
            line.append(", \"").append(details[at]).append("\": ").append(details[at + 1]);
        }
        System.out.println(line.append("}"));
        System.out.flush();
    }

    static String quoted(Object text) {
        return "\"" + String.valueOf(text).replaceAll("[\"\\\\\\n\\t]", " ") + "\"";
    }

    boolean isInGroup() {
        return mode.equals("group");
    }

    public void run() {
        while (!ended) {
            starts++;
            try (KafkaProducer<String, String> producer = newProducer();
                    KafkaConsumer<String, String> consumer = newConsumer()) {
                try {
                    serve(producer, consumer);
                } finally {
                    producer.close(Duration.ZERO); // an open transaction is left to the broker
                }
            } catch (InvalidOffsetException error) {
                say("failed", "error", quoted(error));
            } catch (KafkaException error) {
                say("started over", "name", quoted(name), "number", "" + number, "error",
                        quoted(error.getClass().getSimpleName()));
                pause(START_OVER_MS);
            } catch (Throwable error) {
                say("failed", "error", quoted(error));
                return;
            }
        }
    }

    KafkaProducer<String, String> newProducer() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("transactional.id", isInGroup() ? name + "-" + number + "-" + starts : group + "-" + number);
        settings.put("transaction.timeout.ms", 10_000);
        settings.put("request.timeout.ms", 4_000);
        settings.put("delivery.timeout.ms", 8_000);
        settings.put("max.block.ms", 15_000);
        settings.put("reconnect.backoff.max.ms", 250);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    KafkaConsumer<String, String> newConsumer() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("isolation.level", "read_committed");
        settings.put("enable.auto.commit", false);
        settings.put("auto.offset.reset", "none");
        settings.put("session.timeout.ms", 3_000);
        settings.put("heartbeat.interval.ms", 500);
        settings.put("request.timeout.ms", 4_000);
        settings.put("default.api.timeout.ms", 15_000);
        settings.put("reconnect.backoff.max.ms", 250);
        settings.put("max.poll.records", ORDERS_MAX);
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    void serve(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer) {
        producer.initTransactions();
        if (isInGroup()) {
            consumer.subscribe(List.of(orders));
        } else {
            consumer.assign(List.of(new TopicPartition(orders, number)));
        }
        while (!ended) {
            long startedMs = System.currentTimeMillis();
            List<ConsumerRecord<String, String>> records = new ArrayList<>();
            consumer.poll(Duration.ofMillis(500)).forEach(records::add);
            if (!records.isEmpty()) {
                handle(producer, consumer, records);
                pause(Math.max(0, startedMs + PACE_MS - System.currentTimeMillis()));
            }
        }
    }

    void handle(KafkaProducer<String, String> producer, KafkaConsumer<String, String> consumer,
            List<ConsumerRecord<String, String>> records) {
        String transaction = name + "." + number + "." + ++transactions;
        boolean isGivenUp = chance.nextDouble() < ABORT_CHANCE;
        try {
            producer.beginTransaction();
            write(producer, transaction, records);
            if (!isGivenUp) {
                Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    ends.put(new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
            }
        } catch (KafkaException error) {
            say("aborted", "transaction", quoted(transaction), "is_asked", "false");
            throw error;
        }
        if (isGivenUp) {
            say("aborted", "transaction", quoted(transaction), "is_asked", "false");
            producer.abortTransaction();
            consumer.committed(consumer.assignment()).forEach((place, committed) -> {
                if (committed != null) {
                    consumer.seek(place, committed.offset());
                }
            });
        } else {
            producer.commitTransaction();
            say("committed", "transaction", quoted(transaction));
        }
    }

    void write(KafkaProducer<String, String> producer, String transaction,
            List<ConsumerRecord<String, String>> records) {
        int leg = 0;
        for (ConsumerRecord<String, String> record : records) {
            int payer = chance.nextInt(ACCOUNTS), amount = 1 + chance.nextInt(AMOUNT_MAX);
            int payee = (payer + 1 + chance.nextInt(ACCOUNTS - 1)) % ACCOUNTS;
            for (int[] change : new int[][] {{payer, -amount}, {payee, amount}}) {
                String value = String.join("|", transaction, "" + leg++, "" + 2 * records.size(), record.topic(),
                        "" + record.partition(), "" + record.offset(), "" + change[0], "" + change[1]);
                producer.send(new ProducerRecord<>(accounts, change[0] % partitions, null, value));
            }
        }
    }

    static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[5]), first = Integer.parseInt(arguments[6]);
        List<Thread> threads = new ArrayList<>();
        for (int number = first; number < first + count; number++) {
            threads.add(new Thread(new JavaTeller(arguments, number)));
        }
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            ended = true;
            for (Thread thread : threads) {
                try {
                    thread.join();
                } catch (InterruptedException error) {
                    return;
                }
            }
        }));
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
