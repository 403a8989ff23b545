// A Spring Kafka application with non-blocking retries. Payments that end with 5 fail once; those that end with 0 fail
// always and end in the dead letter topic.

import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.BackOff;
import org.springframework.kafka.annotation.DltHandler;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.annotation.RetryableTopic;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.ConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaAdmin;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.retrytopic.RetryTopicConfigurationSupport;
import org.springframework.kafka.retrytopic.SameIntervalTopicReuseStrategy;
import org.springframework.kafka.retrytopic.TopicSuffixingStrategy;
import org.springframework.kafka.support.KafkaHeaders;
import org.springframework.messaging.handler.annotation.Header;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;

public class SpringPayments {
    static String bootstrap;

    public static class Listener {
        private final KafkaTemplate<String, String> template;

        Listener(KafkaTemplate<String, String> template) {
            this.template = template;
        }

        @RetryableTopic(
            attempts = "3",
            backOff = @BackOff(delay = 300),
            kafkaTemplate = "template",
            numPartitions = "2",
            topicSuffixingStrategy = TopicSuffixingStrategy.SUFFIX_WITH_INDEX_VALUE,
            sameIntervalTopicReuseStrategy = SameIntervalTopicReuseStrategy.MULTIPLE_TOPICS)
        @KafkaListener(topics = "payments", groupId = "payments")
        public void pay(ConsumerRecord<String, String> payment) throws Exception {
            String value = payment.value();
            if (value.endsWith("0") || (value.endsWith("5") && payment.topic().equals("payments"))) {
                throw new IllegalStateException("refused: " + value);
            }
            template.send("paid", value).get();
        }

        @DltHandler
        public void refuse(
                ConsumerRecord<String, String> payment, @Header(KafkaHeaders.ORIGINAL_TOPIC) byte[] topic)
                throws Exception {
            template.send("refused", payment.value() + " of " + new String(topic)).get();
        }
    }

    @Configuration
    @EnableKafka
    public static class Application extends RetryTopicConfigurationSupport {
        @Bean
        ConsumerFactory<String, String> consumers() {
            return new DefaultKafkaConsumerFactory<>(
                Map.of("bootstrap.servers", bootstrap, "auto.offset.reset", "earliest", "session.timeout.ms", "6000"),
                new StringDeserializer(),
                new StringDeserializer());
        }

        @Bean
        ConcurrentKafkaListenerContainerFactory<String, String> kafkaListenerContainerFactory(
                ConsumerFactory<String, String> consumers) {
            var factory = new ConcurrentKafkaListenerContainerFactory<String, String>();
            factory.setConsumerFactory(consumers);
            factory.setConcurrency(2);
            return factory;
        }

        @Bean
        KafkaTemplate<String, String> template() {
            return new KafkaTemplate<>(new DefaultKafkaProducerFactory<>(
                Map.of("bootstrap.servers", bootstrap), new StringSerializer(), new StringSerializer()));
        }

        @Bean
        KafkaAdmin admin() {
            return new KafkaAdmin(Map.of("bootstrap.servers", bootstrap));
        }

        @Bean
        ThreadPoolTaskScheduler scheduler() {
            return new ThreadPoolTaskScheduler();
        }

        @Bean
        Listener listener(KafkaTemplate<String, String> template) {
            return new Listener(template);
        }
    }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        var context = new AnnotationConfigApplicationContext(Application.class);
        context.registerShutdownHook();
        Thread.currentThread().join();
    }
}
