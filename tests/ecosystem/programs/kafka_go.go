// Uses kafka-go as a program would: `produce` writes numbered records, `consume` is a member of a group that prints
// each value after its offset is committed.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

func main() {
	mode, bootstrap, topic := os.Args[1], os.Args[2], os.Args[3]
	count, _ := strconv.Atoi(os.Args[4])
	if mode == "produce" {
		produce(bootstrap, topic, count)
	} else {
		consume(bootstrap, topic, os.Args[5])
	}
}

func produce(bootstrap, topic string, count int) {
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, Balancer: &kafka.Hash{}, RequiredAcks: kafka.RequireAll,
		Compression: kafka.Zstd, BatchTimeout: 5 * time.Millisecond, MaxAttempts: 30,
	}
	for first := 0; first < count; first += 100 {
		messages := []kafka.Message{}
		for number := first; number < first+100 && number < count; number++ {
			messages = append(messages, kafka.Message{
				Key: []byte(strconv.Itoa(number % 17)), Value: []byte(strconv.Itoa(number)),
			})
		}
		if err := writer.WriteMessages(context.Background(), messages...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(first)
	}
	if err := writer.Close(); err != nil {
		os.Exit(1)
	}
}

func consume(bootstrap, topic, group string) {
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, GroupID: group, Topic: topic, StartOffset: kafka.FirstOffset,
		MaxWait: 200 * time.Millisecond, SessionTimeout: 6 * time.Second, RebalanceTimeout: 10 * time.Second,
	})
	out := bufio.NewWriter(os.Stdout)
	for {
		message, err := reader.FetchMessage(context.Background())
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Fprintln(out, string(message.Value))
		out.Flush()
		if err := reader.CommitMessages(context.Background(), message); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}
