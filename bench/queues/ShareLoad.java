// The load of bench.queues: share consumers of one group, and a producer, in one JVM that serves one broker.
//
// Arguments: BOOTSTRAP TOPIC GROUP CONSUMERS ACKNOWLEDGEMENT ORDERING BATCH_BYTES POLL_RECORDS
//   ACKNOWLEDGEMENT batches: with the next poll (Kafka's implicit mode); each: commitSync after each record (explicit)
//   ORDERING none, or key: share.ordering of the group
//
// It prints `ready` when every consumer has its partition. Then it carries out one command per line of its input:
//   fill COUNT              produce until COUNT records are left to consume; answers `filled`
//   consume COUNT SECONDS   answers `first` at the first record, and `consumed RECORDS NANOSECONDS` at the end
//   latency RATE COUNT      produce at a rate and consume meanwhile; answers `first`, and `delivered RECORDS P50 P99`
// Between commands no consumer polls. An error is one line that begins with `error`.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class ShareLoad {
    static final int KEYS = 10_000, VALUE_BYTES = 100, READY_S_MAX = 60, LATE_S_MAX = 20;
    static final Duration WAIT = Duration.ofMillis(50);

    final String bootstrap, topic, group, pollRecords;
    final int consumers;
    final boolean each;
    final KafkaProducer<byte[], byte[]> producer, prompt;
    final AtomicLong left = new AtomicLong(), count = new AtomicLong();
    volatile boolean open = false;
    volatile long wanted = 0;
    volatile CountDownLatch done = new CountDownLatch(0), paused = new CountDownLatch(0);
    volatile long first = 0, last = 0;
    volatile long[] delays = new long[0];
    long produced = 0;

    ShareLoad(String[] arguments) {
        bootstrap = arguments[0];
        topic = arguments[1];
        group = arguments[2];
        consumers = Integer.parseInt(arguments[3]);
        each = arguments[4].equals("each");
        pollRecords = arguments[7];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "1");
        settings.put("enable.idempotence", "false");
        settings.put("batch.size", arguments[6]);
        settings.put("linger.ms", "5");
        producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
        settings.put("linger.ms", "0");
        prompt = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    static void fail(Object error) {
        say("error " + String.valueOf(error).replace('\n', ' '));
        System.exit(1);
    }

    public static void main(String[] arguments) throws Exception {
        ShareLoad load = new ShareLoad(arguments);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", load.bootstrap))) {
            load.configure(admin, arguments[5]);
            for (int number = 0; number < load.consumers; number++) {
                Thread thread = new Thread(load::work);
                thread.setDaemon(true);
                thread.start();
            }
            load.awaitAssignments(admin);
        }
        say("ready");
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            long number = Long.parseLong(words[1]);
            switch (words[0]) {
                case "fill" -> load.fill(number);
                case "consume" -> load.consume(number, Long.parseLong(words[2]));
                case "latency" -> load.measureDelays(number, Integer.parseInt(words[2]));
                default -> fail("unknown command " + line);
            }
        }
        System.exit(0);
    }

    void configure(Admin admin, String ordering) throws Exception {
        List<AlterConfigOp> changes = new ArrayList<>();
        changes.add(set("share.auto.offset.reset", "earliest"));
        if (!ordering.equals("none")) {
            changes.add(set("share.ordering", ordering));
        }
        admin.incrementalAlterConfigs(Map.of(new ConfigResource(ConfigResource.Type.GROUP, group), changes)).all().get();
    }

    static AlterConfigOp set(String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET);
    }

    void awaitAssignments(Admin admin) throws Exception {
        long deadline = System.nanoTime() + READY_S_MAX * 1_000_000_000L;
        while (System.nanoTime() < deadline) {
            try {
                var described = admin.describeShareGroups(List.of(group)).all().get().get(group);
                long having = described.members().stream().filter(m -> !m.assignment().topicPartitions().isEmpty()).count();
                if (having == consumers) {
                    return;
                }
            } catch (java.util.concurrent.ExecutionException absent) {
                // the group does not exist before its first member
            }
            Thread.sleep(100);
        }
        fail("not all consumers have a partition after " + READY_S_MAX + " s");
    }

    // Consumers

    KafkaShareConsumer<byte[], byte[]> join() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", each ? "explicit" : "implicit");
        settings.put("max.poll.records", pollRecords);
        var consumer = new KafkaShareConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    void work() {
        try (KafkaShareConsumer<byte[], byte[]> consumer = join()) {
            consumer.setAcknowledgementCommitCallback((offsets, error) -> {
                if (error != null) {
                    fail("an acknowledgement was refused: " + error);
                }
            });
            consumer.poll(Duration.ZERO); // joins the group
            while (true) {
                while (!open) {
                    LockSupport.parkNanos(200_000);
                }
                CountDownLatch over = paused;
                while (open) {
                    handle(consumer, consumer.poll(WAIT));
                }
                consumer.commitSync();
                over.countDown();
            }
        } catch (Throwable error) {
            fail(error);
        }
    }

    void handle(KafkaShareConsumer<byte[], byte[]> consumer, ConsumerRecords<byte[], byte[]> records) {
        if (records.isEmpty()) {
            return;
        }
        long now = System.nanoTime();
        if (first == 0) {
            begin(now);
        }
        if (!each) {
            note(records, now);
            add(records.count());
            return;
        }
        for (ConsumerRecord<byte[], byte[]> record : records) {
            consumer.acknowledge(record);
            consumer.commitSync().values().forEach(error -> error.ifPresent(ShareLoad::fail));
            add(1);
        }
    }

    synchronized void begin(long now) {
        if (first == 0) {
            first = now;
            say("first");
        }
    }

    void add(int more) {
        left.addAndGet(-more);
        if (count.addAndGet(more) >= wanted && wanted > 0) {
            last = System.nanoTime();
            done.countDown();
        }
    }

    void note(ConsumerRecords<byte[], byte[]> records, long now) {
        long[] found = delays;
        if (found.length == 0) {
            return;
        }
        for (ConsumerRecord<byte[], byte[]> record : records) {
            ByteBuffer value = ByteBuffer.wrap(record.value());
            long sent = value.getLong();
            int number = (int) value.getLong();
            if (number >= 0 && number < found.length && found[number] == 0) {
                found[number] = now - sent;
            }
        }
    }

    void start(long records) {
        first = last = 0;
        count.set(0);
        wanted = records;
        done = new CountDownLatch(1);
        paused = new CountDownLatch(consumers);
        open = true;
    }

    void stop() throws Exception {
        open = false;
        if (!paused.await(LATE_S_MAX, java.util.concurrent.TimeUnit.SECONDS)) {
            fail("a consumer did not stop");
        }
    }

    // Commands

    void fill(long records) {
        byte[] value = new byte[VALUE_BYTES];
        Arrays.fill(value, (byte) 'v');
        long more = records - left.get();
        for (long number = 0; number < more; number++, produced++) {
            producer.send(new ProducerRecord<>(topic, Long.toString(produced % KEYS).getBytes(), value));
        }
        producer.flush();
        left.addAndGet(Math.max(more, 0));
        say("filled");
    }

    void consume(long records, long seconds) throws Exception {
        start(records);
        boolean all = done.await(seconds, java.util.concurrent.TimeUnit.SECONDS);
        long end = all ? last : System.nanoTime();
        say("consumed " + (all ? records : count.get()) + " " + (end - first));
        stop();
    }

    void measureDelays(long rate, int records) throws Exception {
        delays = new long[records];
        start(records);
        long begin = System.nanoTime();
        for (int number = 0; number < records; number++) {
            long due = begin + number * 1_000_000_000L / rate;
            while (System.nanoTime() < due) {
                LockSupport.parkNanos(due - System.nanoTime());
            }
            ByteBuffer value = ByteBuffer.allocate(VALUE_BYTES).putLong(System.nanoTime()).putLong(number);
            prompt.send(new ProducerRecord<>(topic, Long.toString(number % KEYS).getBytes(), value.array()));
        }
        left.addAndGet(records);
        if (!done.await(LATE_S_MAX, java.util.concurrent.TimeUnit.SECONDS)) {
            fail("only " + count.get() + " of " + records + " records were delivered");
        }
        long[] found = delays;
        delays = new long[0];
        Arrays.sort(found);
        if (found[0] == 0) {
            fail("a record was delivered twice before another was delivered at all");
        }
        say("delivered " + records + " " + found[records / 2] / 1e6 + " " + found[records * 99 / 100] / 1e6);
        stop();
    }
}
