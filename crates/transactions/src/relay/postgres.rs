//! The outbox in PostgreSQL.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::source::{
    BODY_BYTES_MAX, COUNT_MAX, Counts, End, Name, RETRY_MAX, Read, Refused, Row, Source, Table,
    headers, storable, too_large,
};
use crate::error::Error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The time after which a server that disappeared is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The first number identifies this use of advisory locks; the second is the table's.
const LOCK: &str = "SELECT pg_try_advisory_lock(1212239937, 'hapax_outbox'::regclass::oid::int)";
/// The channel of the migration's trigger.
const LISTEN: &str = "LISTEN hapax_outbox";

/// The bytes are summed over the rows of the page only; over the whole table it would be a scan.
const READ: &str = "
WITH ready AS (
    SELECT id, octet_length(body) AS bytes FROM hapax_outbox o
    WHERE parked_at IS NULL
      AND (retry_at IS NULL OR retry_at <= now()
          OR retry_at > now() + $5::bigint * interval '1 millisecond')
      AND (message_group = '' OR NOT EXISTS (
          SELECT FROM hapax_outbox w
          WHERE w.queue = o.queue AND w.message_group = o.message_group
            AND w.parked_at IS NULL AND w.retry_at > now()
            AND w.retry_at <= now() + $5::bigint * interval '1 millisecond'))
      AND queue <> ALL ($3)
    ORDER BY id LIMIT $1
), page AS (
    SELECT id, sum(bytes) OVER (ORDER BY id) - bytes AS before FROM ready
)
SELECT id, queue, message_key, message_group,
    CASE WHEN octet_length(body) <= $4 THEN body END, content_type, headers::text, delay_ms, ttl_ms,
    fingerprint,
    CASE WHEN isfinite(coalesce(issued_at, created_at))
        THEN (extract(epoch FROM coalesce(issued_at, created_at)) * 1000)::bigint END,
    CASE WHEN isfinite(created_at)
        THEN (extract(epoch FROM now() - created_at) * 1000)::bigint END,
    tries, octet_length(body)::bigint
FROM hapax_outbox JOIN page USING (id) WHERE before < $2 ORDER BY id";

const DELETE: &str = "DELETE FROM hapax_outbox WHERE id = ANY ($1)";

const REFUSE: &str = "
UPDATE hapax_outbox SET tries = $2, error = $3,
    retry_at = now() + $4::bigint * interval '1 millisecond',
    parked_at = CASE WHEN $4::bigint IS NULL THEN now() END
WHERE id = $1";

const COUNT: &str = "
SELECT (SELECT count(*) FROM (SELECT FROM hapax_outbox WHERE parked_at IS NULL LIMIT $1) pending),
    (SELECT count(*) FROM (SELECT FROM hapax_outbox WHERE parked_at IS NOT NULL LIMIT $1) parked),
    coalesce((SELECT (extract(epoch FROM now() - created_at) * 1000)::bigint FROM hapax_outbox
        WHERE parked_at IS NULL AND isfinite(created_at) ORDER BY id LIMIT 1), 0)";

#[derive(Debug)]
pub(super) struct Address(Config, Option<Arc<ClientConfig>>);

impl Address {
    pub(super) fn new(mut config: Config, tls: Option<Arc<ClientConfig>>) -> Result<Self, Error> {
        if tls.is_none() && config.get_ssl_mode() == SslMode::Require {
            return Err(Error::invalid(
                "sslmode=require needs the CA certificate of the server: give it with \
                 --database-ca FILE",
            ));
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.keepalives_idle(KEEP_ALIVE).keepalives_interval(KEEP_ALIVE).keepalives_retries(2);
        if config.get_application_name().is_none() {
            config.application_name("hapax relay");
        }
        Ok(Self(config, tls))
    }

    /// Connects, and signals notifications and the end of the connection.
    async fn connect(&self) -> Result<(Client, Arc<Notify>), tokio_postgres::Error> {
        let news = Arc::new(Notify::new());
        let client = match &self.1 {
            Some(tls) => {
                let tls = MakeRustlsConnect::new(ClientConfig::clone(tls));
                let (client, connection) = self.0.connect(tls).await?;
                tokio::spawn(drive(connection, Arc::clone(&news)));
                client
            }
            None => {
                let (client, connection) = self.0.connect(NoTls).await?;
                tokio::spawn(drive(connection, Arc::clone(&news)));
                client
            }
        };
        Ok((client, news))
    }
}

/// Ends with the client, or with the connection; the next statement then fails.
async fn drive<T>(mut connection: Connection<Socket, T>, news: Arc<Notify>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notification(_) = message {
            news.notify_one();
        }
    }
    news.notify_one();
}

#[derive(Debug)]
pub(super) struct Postgres {
    client: Client,
    news: Arc<Notify>,
    results: Option<Table>,
}

impl Postgres {
    /// Reports a missing table at once, with the command that creates it.
    async fn check(&self) -> Result<(), Error> {
        let missing = |table: &str, subject: &str| {
            Error::invalid(format!(
                "there is no table {table} in this database; create it with: hapax sql {subject} \
                 --dialect postgres | psql"
            ))
        };
        if !self.has("hapax_outbox").await? {
            return Err(missing("hapax_outbox", "outbox"));
        }
        if let Some(results) = &self.results
            && !self.has(results.quoted()).await?
        {
            return Err(missing(results.quoted(), "results"));
        }
        self.client.batch_execute(LISTEN).await.map_err(Error::database("cannot listen"))
    }

    async fn has(&self, table: &str) -> Result<bool, Error> {
        let what = "the tables cannot be looked up";
        let sql = "SELECT to_regclass($1) IS NOT NULL";
        let row = self.client.query_typed_one(sql, &[(&table, Type::TEXT)]).await;
        row.and_then(|row| row.try_get(0)).map_err(Error::database(what))
    }

    fn table(&self) -> &str {
        self.results.as_ref().map_or("hapax_results", Table::quoted)
    }
}

impl Source for Postgres {
    type Address = Address;

    async fn open(address: &Address, results: Option<Table>) -> Result<Self, Error> {
        let what = "cannot connect to PostgreSQL";
        let (client, news) = address.connect().await.map_err(Error::database(what))?;
        let postgres = Self { client, news, results };
        postgres.check().await?;
        Ok(postgres)
    }

    async fn lock(&mut self) -> Result<bool, Error> {
        let row = self.client.query_typed_one(LOCK, &[]).await;
        row.and_then(|row| row.try_get(0)).map_err(Error::database("the lock cannot be taken"))
    }

    async fn read(&mut self, rows: i64, bytes: i64, held: &[String]) -> Result<Read, Error> {
        let what = "the outbox cannot be read";
        let retry_ms_max = RETRY_MAX.as_millis() as i64;
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&rows, Type::INT8),
            (&bytes, Type::INT8),
            (&held, Type::TEXT_ARRAY),
            (&BODY_BYTES_MAX, Type::INT8),
            (&retry_ms_max, Type::INT8),
        ];
        let found = self.client.query_typed(READ, &parameters).await;
        let found = found.map_err(Error::database(what))?;
        let mut read = Read::default();
        for row in &found {
            let id = row.try_get(0).map_err(Error::database(what))?;
            read.push(id, row_of(id, row));
        }
        Ok(read)
    }

    async fn settle(&mut self, confirmed: &[Row], refused: &[Refused]) -> Result<(), Error> {
        let what = "the outbox cannot be written";
        let waiting = self.results.is_some().then(|| {
            format!(
                "INSERT INTO {} (queue, message_key, message_group)
                 SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING",
                self.table()
            )
        });
        let transaction = self.client.transaction().await.map_err(Error::database(what))?;
        if let Some(waiting) = waiting {
            let part = |part: fn(&Name) -> &String| -> Vec<&str> {
                confirmed.iter().map(|row| part(&row.name).as_str()).collect()
            };
            let (queues, keys) = (part(|name| &name.queue), part(|name| &name.key));
            let groups = part(|name| &name.group);
            let parameters: [(&(dyn ToSql + Sync), Type); 3] = [
                (&queues, Type::TEXT_ARRAY),
                (&keys, Type::TEXT_ARRAY),
                (&groups, Type::TEXT_ARRAY),
            ];
            let inserted = transaction.execute_typed(&waiting, &parameters).await;
            inserted.map_err(Error::database("the table of results cannot be written"))?;
        }
        let ids: Vec<i64> = confirmed.iter().map(|row| row.id).collect();
        let deleted = transaction.execute_typed(DELETE, &[(&ids, Type::INT8_ARRAY)]).await;
        deleted.map_err(Error::database(what))?;
        for row in refused {
            let tries = i32::try_from(row.tries).unwrap_or(i32::MAX);
            let retry_ms = row.retry_in.map(|pause| pause.as_millis() as i64);
            let error = storable(&row.error);
            let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
                (&row.id, Type::INT8),
                (&tries, Type::INT4),
                (&error, Type::TEXT),
                (&retry_ms, Type::INT8),
            ];
            let updated = transaction.execute_typed(REFUSE, &parameters).await;
            updated.map_err(Error::database(what))?;
        }
        transaction.commit().await.map_err(Error::database(what))
    }

    async fn wait(&mut self, most: Duration) -> Result<(), Error> {
        let _ = tokio::time::timeout(most, self.news.notified()).await;
        Ok(())
    }

    async fn count(&mut self) -> Result<Counts, Error> {
        let what = "the outbox cannot be counted";
        let row = self.client.query_typed_one(COUNT, &[(&COUNT_MAX, Type::INT8)]).await;
        let row = row.map_err(Error::database(what))?;
        let number = |place: usize| row.try_get::<_, i64>(place).map_err(Error::database(what));
        let mut counts = Counts {
            pending: number(0)?,
            parked: number(1)?,
            lag_ms: number(2)?.max(0),
            waiting: 0,
        };
        if self.results.is_some() {
            let sql = format!(
                "SELECT count(*) FROM (SELECT FROM {} WHERE state = 'waiting' LIMIT $1) waiting",
                self.table()
            );
            let row = self.client.query_typed_one(&sql, &[(&COUNT_MAX, Type::INT8)]).await;
            counts.waiting = row.and_then(|row| row.try_get(0)).map_err(Error::database(what))?;
        }
        Ok(counts)
    }

    async fn waiting(&mut self, after: &Name, most: i64) -> Result<Vec<Name>, Error> {
        let what = "the table of results cannot be read";
        let sql = format!(
            "SELECT queue, message_key, message_group FROM {} WHERE state = 'waiting'
               AND (queue, message_key, message_group) > ($1, $2, $3)
             ORDER BY queue, message_key, message_group LIMIT $4",
            self.table()
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&after.queue, Type::TEXT),
            (&after.key, Type::TEXT),
            (&after.group, Type::TEXT),
            (&most, Type::INT8),
        ];
        let found = self.client.query_typed(&sql, &parameters).await;
        let found = found.map_err(Error::database(what))?;
        let name = |row: &tokio_postgres::Row| -> Result<Name, tokio_postgres::Error> {
            Ok(Name { queue: row.try_get(0)?, key: row.try_get(1)?, group: row.try_get(2)? })
        };
        found.iter().map(|row| name(row).map_err(Error::database(what))).collect()
    }

    async fn end(&mut self, name: &Name, end: &End) -> Result<(), Error> {
        let sql = format!(
            "UPDATE {} SET state = $4, result = $5, result_type = $6, error = $7,
                 finished_at = to_timestamp($8::bigint / 1000.0::double precision)
             WHERE queue = $1 AND message_key = $2 AND message_group = $3 AND state = 'waiting'",
            self.table()
        );
        let parameters: [(&(dyn ToSql + Sync), Type); 8] = [
            (&name.queue, Type::TEXT),
            (&name.key, Type::TEXT),
            (&name.group, Type::TEXT),
            (&end.state, Type::TEXT),
            (&end.result, Type::BYTEA),
            (&end.result_type, Type::TEXT),
            (&end.error, Type::TEXT),
            (&end.finished_at_ms, Type::INT8),
        ];
        let updated = self.client.execute_typed(&sql, &parameters).await;
        updated.map_err(Error::database("the table of results cannot be written")).map(drop)
    }
}

/// A column that cannot be read makes the row invalid, with that reason.
fn row_of(id: i64, row: &tokio_postgres::Row) -> Result<Row, String> {
    let bytes = column(row, 13, "body")?;
    let Some(body) = column::<Option<Vec<u8>>>(row, 4, "body")? else {
        return Err(too_large(bytes));
    };
    let time = |place, name| {
        let time: Option<i64> = column(row, place, name)?;
        time.ok_or_else(|| format!("{name} is infinite"))
    };
    // Read before the date of the operation, which defaults to it.
    let age_ms = time(11, "created_at")?;
    Ok(Row {
        id,
        name: Name {
            queue: column(row, 1, "queue")?,
            key: column(row, 2, "message_key")?,
            group: column(row, 3, "message_group")?,
        },
        body: body.into(),
        content_type: column(row, 5, "content_type")?,
        headers: headers(&column::<String>(row, 6, "headers")?)?,
        delay_ms: column(row, 7, "delay_ms")?,
        ttl_ms: column(row, 8, "ttl_ms")?,
        fingerprint: column(row, 9, "fingerprint")?,
        issued_at_ms: time(10, "issued_at")?,
        age_ms,
        tries: column::<i32>(row, 12, "tries")?.unsigned_abs(),
    })
}

fn column<'a, T: FromSql<'a>>(
    row: &'a tokio_postgres::Row,
    place: usize,
    name: &str,
) -> Result<T, String> {
    row.try_get(place).map_err(|error| format!("{name}: {error}"))
}
