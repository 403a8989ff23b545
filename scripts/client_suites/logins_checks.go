// Logs in with every mechanism that franz-go has, and prints one line of JSON per check: its sentence, and an error or null.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const checkTimeout = 20 * time.Second

type access struct {
	Sasl, Tls, User, Password, Token string
	Authority, Certificate, Key      string
	SessionMs                        int64
}

var known access

func check(sentence string, work func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	var told *string
	if err := work(ctx); err != nil {
		text := err.Error()
		told = &text
	}
	line, _ := json.Marshal(map[string]any{"check": sentence, "error": told})
	fmt.Println(string(line))
}

func encrypted() *tls.Config {
	pem, err := os.ReadFile(known.Authority)
	if err != nil {
		panic(err)
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: trusted, ServerName: "localhost"}
}

func client(mechanism sasl.Mechanism) (*kgo.Client, error) {
	return kgo.NewClient(kgo.SeedBrokers(known.Sasl), kgo.DialTLSConfig(encrypted()), kgo.SASL(mechanism))
}

// Produces and consumes for longer than a session lasts, so that the client logs in again.
func exchange(ctx context.Context, topic string, own *kgo.Client) error {
	defer own.Close()
	if _, err := kadm.NewClient(own).CreateTopic(ctx, 1, 1, nil, topic); err != nil {
		return err
	}
	own.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}})
	ends := time.Now().Add(time.Duration(known.SessionMs) * time.Millisecond * 3 / 2)
	for number := 0; number == 0 || time.Now().Before(ends); number++ {
		sent := fmt.Sprint(number)
		if err := own.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(sent)}).FirstErr(); err != nil {
			return err
		}
		fetches := own.PollRecords(ctx, 1)
		if err := fetches.Err(); err != nil {
			return err
		}
		if got := string(fetches.Records()[0].Value); got != sent {
			return fmt.Errorf("sent %s and got %s", sent, got)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

func logsIn(name string, mechanism sasl.Mechanism) {
	check("log in with "+name+", and again", func(ctx context.Context) error {
		own, err := client(mechanism)
		if err != nil {
			return err
		}
		return exchange(ctx, "go-"+name, own)
	})
}

func isRefused(name string, mechanism sasl.Mechanism) {
	check("be refused with "+name, func(ctx context.Context) error {
		own, err := client(mechanism)
		if err != nil {
			return err
		}
		defer own.Close()
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		if own.Ping(ctx) == nil {
			return errors.New("it was let in")
		}
		return nil
	})
}

func tokens(ctx context.Context) error {
	own, err := client(scram.Auth{User: known.User, Pass: known.Password}.AsSha512Mechanism())
	if err != nil {
		return err
	}
	defer own.Close()
	admin := kadm.NewClient(own)
	token, err := admin.CreateDelegationToken(ctx, kadm.CreateDelegationToken{MaxLifetime: time.Hour})
	if err != nil {
		return err
	}
	auth := scram.Auth{User: token.TokenID, Pass: base64.StdEncoding.EncodeToString(token.HMAC), IsToken: true}
	with, err := client(auth.AsSha256Mechanism())
	if err != nil {
		return err
	}
	if err := exchange(ctx, "go-token", with); err != nil {
		return err
	}
	found, err := admin.DescribeDelegationTokens(ctx)
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%d tokens", len(found))
	}
	if err == nil {
		_, err = admin.RenewDelegationToken(ctx, token.HMAC, time.Minute)
	}
	if err == nil {
		_, err = admin.ExpireDelegationToken(ctx, token.HMAC, -time.Millisecond)
	}
	return err
}

func main() {
	if err := json.Unmarshal([]byte(os.Args[1]), &known); err != nil {
		panic(err)
	}
	right, wrong := scram.Auth{User: known.User, Pass: known.Password}, scram.Auth{User: known.User, Pass: "guess"}
	logsIn("PLAIN", plain.Auth{User: known.User, Pass: known.Password}.AsMechanism())
	logsIn("SCRAM-SHA-256", right.AsSha256Mechanism())
	logsIn("SCRAM-SHA-512", right.AsSha512Mechanism())
	logsIn("OAUTHBEARER", oauth.Auth{Token: known.Token}.AsMechanism())
	isRefused("a wrong password of PLAIN", plain.Auth{User: known.User, Pass: "guess"}.AsMechanism())
	isRefused("a wrong password of SCRAM", wrong.AsSha512Mechanism())
	isRefused("a wrong token", oauth.Auth{Token: known.Token + "x"}.AsMechanism())
	check("log in with a delegation token, renew and expire it", tokens)
	check("connect with a certificate", func(ctx context.Context) error {
		config := encrypted()
		own, err := tls.LoadX509KeyPair(known.Certificate, known.Key)
		if err != nil {
			return err
		}
		config.Certificates = []tls.Certificate{own}
		made, err := kgo.NewClient(kgo.SeedBrokers(known.Tls), kgo.DialTLSConfig(config))
		if err != nil {
			return err
		}
		return exchange(ctx, "go-certificate", made)
	})
}
