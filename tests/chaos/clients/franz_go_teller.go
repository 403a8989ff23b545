// Tellers of franz-go: see tests/chaos/teller.py, whose arguments and lines these are. Its transactions belong to
// groups, so MODE is always "group".
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	accountCount = 100
	amountMax    = 1000
	ordersMax    = 3
	abortChance  = 0.1
	pace         = 150 * time.Millisecond
	startOver    = 300 * time.Millisecond
	callTimeout  = 20 * time.Second
)

type teller struct {
	bootstrap, group, orders, accounts, name string
	partitions, number, transactions, starts int
	chance                                   *rand.Rand
}

var output sync.Mutex

func say(event string, details map[string]any) {
	line := map[string]any{"event": event}
	for name, value := range details {
		line[name] = value
	}
	text, _ := json.Marshal(line)
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(text, '\n'))
}

func (t *teller) run(ended context.Context) {
	for ended.Err() == nil {
		t.starts++
		if err := t.serve(ended); err != nil {
			say("started over", map[string]any{"name": t.name, "number": t.number, "error": fmt.Sprintf("%T", err)})
			time.Sleep(startOver)
		}
	}
}

func (t *teller) serve(ended context.Context) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(t.bootstrap, ",")...),
		kgo.TransactionalID(fmt.Sprintf("%s-%d-%d", t.name, t.number, t.starts)),
		kgo.TransactionTimeout(10*time.Second),
		kgo.ConsumerGroup(t.group),
		kgo.ConsumeTopics(t.orders),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.SessionTimeout(3*time.Second),
		kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RecordDeliveryTimeout(8*time.Second),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for ended.Err() == nil {
		started := time.Now()
		polling, cancel := context.WithTimeout(ended, 500*time.Millisecond)
		fetches := session.PollRecords(polling, 1+t.chance.Intn(ordersMax))
		cancel()
		for _, each := range fetches.Errors() {
			if !errors.Is(each.Err, context.DeadlineExceeded) && !errors.Is(each.Err, context.Canceled) {
				return each.Err
			}
		}
		if records := fetches.Records(); len(records) > 0 {
			if err := t.handle(session, records); err != nil {
				return err
			}
			time.Sleep(time.Until(started.Add(pace)))
		}
	}
	return nil
}

func (t *teller) handle(session *kgo.GroupTransactSession, records []*kgo.Record) error {
	t.transactions++
	transaction := fmt.Sprintf("%s.%d.%d", t.name, t.number, t.transactions)
	if err := session.Begin(); err != nil {
		return err
	}
	var firstError kgo.FirstErrPromise
	leg := 0
	for _, record := range records {
		payer, amount := t.chance.Intn(accountCount), 1+t.chance.Intn(amountMax)
		payee := (payer + 1 + t.chance.Intn(accountCount-1)) % accountCount
		for _, change := range [][2]int{{payer, -amount}, {payee, amount}} {
			value := fmt.Sprintf("%s|%d|%d|%s|%d|%d|%d|%d", transaction, leg, 2*len(records), record.Topic,
				record.Partition, record.Offset, change[0], change[1])
			leg++
			partition := int32(change[0] % t.partitions)
			sent := &kgo.Record{Topic: t.accounts, Partition: partition, Value: []byte(value)}
			session.Produce(context.Background(), sent, firstError.Promise())
		}
	}
	calling, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	isGivenUp := t.chance.Float64() < abortChance
	commit := firstError.Err() == nil && !isGivenUp
	if !commit {
		say("aborted", map[string]any{"transaction": transaction, "is_asked": false})
	}
	isCommitted, err := session.End(calling, kgo.TransactionEndTry(commit))
	if err != nil {
		return err
	}
	if isCommitted {
		say("committed", map[string]any{"transaction": transaction})
	} else if commit { // the session lost its partitions, and gave up by itself
		say("aborted", map[string]any{"transaction": transaction, "is_asked": true})
	}
	return nil
}

func main() {
	arguments := os.Args[1:]
	number := func(at int) int { found, _ := strconv.Atoi(arguments[at]); return found }
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var running sync.WaitGroup
	for at := 0; at < number(5); at++ {
		each := &teller{
			bootstrap: arguments[0], group: arguments[1], orders: arguments[2], accounts: arguments[3],
			partitions: number(4), number: number(6) + at, name: arguments[8],
			chance: rand.New(rand.NewSource(time.Now().UnixNano() + int64(at))),
		}
		running.Add(1)
		go func() { defer running.Done(); each.run(ended) }()
	}
	running.Wait()
}
