// Uses sarama as a program would: `produce` writes numbered records with an idempotent producer, `consume` is a member
// of a group that prints each value and marks it.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

type handler struct{}

func (handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		fmt.Println(string(message.Value))
		session.MarkMessage(message, "")
	}
	return nil
}

func main() {
	mode, bootstrap, topic := os.Args[1], []string{os.Args[2]}, os.Args[3]
	count, _ := strconv.Atoi(os.Args[4])
	config := sarama.NewConfig()
	config.Version = sarama.V3_6_0_0
	config.Metadata.Retry.Max, config.Metadata.Retry.Backoff = 60, 250*time.Millisecond
	if mode == "produce" {
		config.Producer.Idempotent, config.Net.MaxOpenRequests = true, 1
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Producer.Return.Successes = true
		config.Producer.Retry.Max, config.Producer.Retry.Backoff = 60, 250*time.Millisecond
		config.Producer.Compression = sarama.CompressionSnappy
		produce(bootstrap, topic, count, config)
		return
	}
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = time.Second
	for {
		group, err := sarama.NewConsumerGroup(bootstrap, os.Args[5], config)
		for err == nil {
			err = group.Consume(context.Background(), []string{topic}, handler{})
		}
		fmt.Fprintln(os.Stderr, err)
		time.Sleep(250 * time.Millisecond)
	}
}

func produce(bootstrap []string, topic string, count int, config *sarama.Config) {
	producer, err := sarama.NewSyncProducer(bootstrap, config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for first := 0; first < count; first += 100 {
		messages := []*sarama.ProducerMessage{}
		for number := first; number < first+100 && number < count; number++ {
			messages = append(messages, &sarama.ProducerMessage{
				Topic: topic, Key: sarama.StringEncoder(strconv.Itoa(number % 17)),
				Value: sarama.StringEncoder(strconv.Itoa(number)),
			})
		}
		if err := producer.SendMessages(messages); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(first)
	}
	producer.Close()
}
