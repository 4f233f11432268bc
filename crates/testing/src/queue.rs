//! One queue of a broker in this process, with a client.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use hapax_client::{Admin, Client, Queue};
use hapax_wire::proto;

use crate::broker::TestBroker;
use crate::wait::PATIENCE;

/// A queue, and its broker that has no other.
#[derive(Debug)]
pub struct TestQueue {
    broker: TestBroker,
    pub client: Client,
    pub admin: Admin,
    name: &'static str,
}

impl TestQueue {
    pub async fn open(partitions: u16, name: &'static str, config_json: &str) -> Self {
        let broker = TestBroker::start(partitions).await;
        let client = Client::connect(&broker.url()).unwrap();
        let admin = Admin::new(client.clone());
        admin.put_queue(name, config_json, None).await.unwrap();
        Self { broker, client, admin, name }
    }

    pub fn queue(&self) -> Queue {
        self.client.queue(self.name)
    }

    /// The name of a key of this queue.
    pub fn named(&self, key: &str) -> proto::KeyRequest {
        let (queue, key) = (self.name.to_owned(), key.to_owned());
        proto::KeyRequest { queue, key, group: String::new() }
    }

    pub async fn key(&self, key: &str) -> proto::Key {
        self.admin.key(self.named(key), Duration::ZERO).await.unwrap()
    }

    /// Returns the key when its message has ended.
    pub async fn ended(&self, key: &str) -> proto::Key {
        self.admin.key(self.named(key), PATIENCE).await.unwrap()
    }

    pub async fn stats(&self) -> proto::QueueStats {
        self.admin.queue(self.name).await.unwrap().stats.unwrap()
    }
}

impl Deref for TestQueue {
    type Target = TestBroker;

    fn deref(&self) -> &TestBroker {
        &self.broker
    }
}

impl DerefMut for TestQueue {
    fn deref_mut(&mut self) -> &mut TestBroker {
        &mut self.broker
    }
}
