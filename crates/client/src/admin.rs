//! Operator calls: queues and their configuration, keys, dead messages, backups, the log; and
//! single receives and settles, for programs that hold leases between two runs. Thin on purpose: a
//! method is one call, and the types are those of the wire. Nothing is retried here; the caller
//! decides whether a retry is safe.

use std::time::Duration;

use hapax_wire::State;
use hapax_wire::proto;
use tonic::Streaming;

use crate::client::Client;
use crate::error::Error;

/// Time allowed beyond the requested wait.
const SLACK: Duration = Duration::from_secs(10);

/// The operator's calls of a broker. Cheap to clone.
///
/// ```no_run
/// # async fn example() -> Result<(), hapax_client::Error> {
/// use hapax_client::{Admin, Client};
///
/// let admin = Admin::new(Client::connect("http://127.0.0.1:4747")?);
/// admin.put_queue("orders", r#"{"lease_ms": 60000}"#, None).await?;
/// for queue in admin.queues().await?.queues {
///     println!("{}", queue.queue);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Admin(Client);

impl Admin {
    pub fn new(client: Client) -> Self {
        Self(client)
    }

    pub fn client(&self) -> &Client {
        &self.0
    }

    /// Creates a queue or changes its configuration, given as the JSON of the HTTP API. With an
    /// etag it is refused if the queue has changed since.
    pub async fn put_queue(
        &self,
        queue: &str,
        config_json: &str,
        etag: Option<&str>,
    ) -> Result<proto::Queue, Error> {
        let request = proto::PutQueueRequest {
            queue: queue.to_owned(),
            config_json: config_json.to_owned(),
            if_match: etag.unwrap_or_default().to_owned(),
        };
        self.0.call(|mut rpc| async move { rpc.put_queue(request).await }).await
    }

    pub async fn queue(&self, queue: &str) -> Result<proto::Queue, Error> {
        let request = name(queue);
        self.0.call(|mut rpc| async move { rpc.get_queue(request).await }).await
    }

    /// The queues that the token may see. If `unanswered` names partitions, their part of the
    /// figures is old or missing.
    pub async fn queues(&self) -> Result<proto::ListQueuesReply, Error> {
        let request = proto::ListQueuesRequest {};
        self.0.call(|mut rpc| async move { rpc.list_queues(request).await }).await
    }

    pub async fn delete_queue(&self, queue: &str) -> Result<(), Error> {
        let request = name(queue);
        self.0.call(|mut rpc| async move { rpc.delete_queue(request).await }).await.map(drop)
    }

    pub async fn pause_queue(&self, queue: &str) -> Result<(), Error> {
        let request = name(queue);
        self.0.call(|mut rpc| async move { rpc.pause_queue(request).await }).await.map(drop)
    }

    pub async fn resume_queue(&self, queue: &str) -> Result<(), Error> {
        let request = name(queue);
        self.0.call(|mut rpc| async move { rpc.resume_queue(request).await }).await.map(drop)
    }

    /// Removes the waiting messages. With `keys`, all keys are forgotten too.
    pub async fn purge_queue(&self, queue: &str, keys: bool) -> Result<(), Error> {
        let request = proto::PurgeRequest { queue: queue.to_owned(), keys };
        self.0.call(|mut rpc| async move { rpc.purge_queue(request).await }).await.map(drop)
    }

    /// Sends messages once, without a retry, and returns their answers in order.
    pub async fn send_batch(
        &self,
        queue: &str,
        messages: Vec<proto::Message>,
    ) -> Result<Vec<proto::Answer>, Error> {
        let request = proto::SendFrame { queue: queue.to_owned(), messages };
        let reply = self.0.call(|mut rpc| async move { rpc.send_batch(request).await }).await?;
        Ok(reply.answers)
    }

    /// Receives messages once; waits for the first one for up to `wait_ms`.
    pub async fn receive(
        &self,
        request: proto::ReceiveRequest,
    ) -> Result<Vec<proto::Delivery>, Error> {
        let timeout = self.patience(Duration::from_millis(request.wait_ms));
        let call = self.0.call_within(timeout, |mut rpc| async move { rpc.receive(request).await });
        Ok(call.await?.messages)
    }

    /// Settles leases and returns the answers in order.
    pub async fn settle(
        &self,
        queue: &str,
        items: Vec<proto::Settle>,
    ) -> Result<Vec<proto::SettleAnswer>, Error> {
        let request = proto::SettleRequest { queue: queue.to_owned(), items };
        let reply = self.0.call(|mut rpc| async move { rpc.settle(request).await }).await?;
        Ok(reply.answers)
    }

    /// Returns everything about a key. With a wait, it returns when the message is done, dead or
    /// parked, or at the end of the wait.
    pub async fn key(&self, key: proto::KeyRequest, wait: Duration) -> Result<proto::Key, Error> {
        let wait_ms = crate::message::ms(wait);
        let request = proto::GetKeyRequest { key: Some(key), wait_ms };
        let timeout = self.patience(wait);
        self.0.call_within(timeout, |mut rpc| async move { rpc.get_key(request).await }).await
    }

    /// Makes a finished key unknown again.
    pub async fn forget_key(&self, key: proto::KeyRequest) -> Result<(), Error> {
        self.0.call(|mut rpc| async move { rpc.forget_key(key).await }).await.map(drop)
    }

    /// Runs a finished message again, as its next generation. The same message must be given again,
    /// unless its queue has `keep_bodies`.
    pub async fn replay_key(
        &self,
        key: proto::KeyRequest,
        message: Option<proto::Message>,
    ) -> Result<(), Error> {
        let request = proto::ReplayRequest { key: Some(key), message };
        self.0.call(|mut rpc| async move { rpc.replay_key(request).await }).await.map(drop)
    }

    /// Discards a message that is dead, parked or waiting.
    pub async fn discard_key(&self, key: proto::KeyRequest) -> Result<(), Error> {
        self.0.call(|mut rpc| async move { rpc.discard_key(key).await }).await.map(drop)
    }

    /// Resolves a parked message: its effect happened, or it is retried.
    pub async fn resolve_key(
        &self,
        key: proto::KeyRequest,
        resolution: proto::resolve_request::Resolution,
    ) -> Result<(), Error> {
        let request = proto::ResolveRequest { key: Some(key), resolution: Some(resolution) };
        self.0.call(|mut rpc| async move { rpc.resolve_key(request).await }).await.map(drop)
    }

    /// Returns a page of the messages in a state. The first page has an empty cursor.
    pub async fn browse(
        &self,
        queue: &str,
        state: State,
        limit: u32,
        cursor: &str,
    ) -> Result<proto::BrowseReply, Error> {
        let request = proto::BrowseRequest {
            queue: queue.to_owned(),
            state: state.into(),
            limit,
            cursor: cursor.to_owned(),
        };
        self.0.call(|mut rpc| async move { rpc.browse(request).await }).await
    }

    /// Starts a redrive. Repeated under its id, it moves nothing twice and returns the progress.
    pub async fn redrive(
        &self,
        request: proto::RedriveRequest,
    ) -> Result<proto::RedriveProgress, Error> {
        self.0.call(|mut rpc| async move { rpc.redrive(request).await }).await
    }

    pub async fn redrive_progress(
        &self,
        queue: &str,
        id: &str,
    ) -> Result<proto::RedriveProgress, Error> {
        let request = proto::GetRedriveRequest { queue: queue.to_owned(), id: id.to_owned() };
        self.0.call(|mut rpc| async move { rpc.get_redrive(request).await }).await
    }

    /// Stops a redrive. Messages that it has moved stay moved.
    pub async fn cancel_redrive(
        &self,
        queue: &str,
        id: &str,
    ) -> Result<proto::RedriveProgress, Error> {
        let request = proto::GetRedriveRequest { queue: queue.to_owned(), id: id.to_owned() };
        self.0.call(|mut rpc| async move { rpc.cancel_redrive(request).await }).await
    }

    /// Lets the running broker copy its data to a directory on its own machine.
    pub async fn backup(&self, directory: &str) -> Result<Backup, Error> {
        let request = proto::BackupRequest { directory: directory.to_owned() };
        let stream = self.0.call(|mut rpc| async move { rpc.backup(request).await }).await?;
        Ok(Backup { client: self.0.clone(), stream })
    }

    /// Changes the broker's log filter until it is restarted.
    pub async fn set_log(&self, filter: &str) -> Result<(), Error> {
        let request = proto::SetLogRequest { filter: filter.to_owned() };
        self.0.call(|mut rpc| async move { rpc.set_log(request).await }).await.map(drop)
    }

    /// The timeout of a call that waits at the broker.
    fn patience(&self, wait: Duration) -> Duration {
        self.0.timeout().max(wait.saturating_add(SLACK))
    }
}

/// A backup in progress. If it is dropped early, the backup is cancelled and the copy is unusable.
#[derive(Debug)]
pub struct Backup {
    client: Client,
    stream: Streaming<proto::BackupProgress>,
}

impl Backup {
    /// Returns the next progress report; `None` after the end.
    pub async fn progress(&mut self) -> Result<Option<proto::BackupProgress>, Error> {
        self.stream.message().await.map_err(|status| self.client.error(&status))
    }
}

fn name(queue: &str) -> proto::QueueRequest {
    proto::QueueRequest { queue: queue.to_owned() }
}
