//! A load through both doors, and what it was told.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use hapax_client::{Admin, Client, Message};
use hapax_testing::http::{Connection, Request};
use hapax_testing::{BrokerProcess, PATIENCE, in_time, until};

/// Keys, and the id that each was answered with.
type Ids = Arc<Mutex<BTreeMap<String, String>>>;

/// Sends until it is stopped, each message until it has an answer.
pub(crate) struct Load {
    ids: Ids,
    answered: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// A client that knows all nodes.
pub(crate) fn client(nodes: &[&BrokerProcess]) -> Client {
    let urls: Vec<String> = nodes.iter().map(|node| node.url()).collect();
    Client::builder(&urls.join(",")).timeout(PATIENCE).connect().unwrap()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Creates the queue.
pub(crate) fn create(nodes: &[&BrokerProcess]) {
    runtime().block_on(async {
        let admin = Admin::new(client(nodes));
        in_time(admin.put_queue("orders", "{}", None)).await.unwrap();
    });
}

impl Load {
    pub(crate) fn start(nodes: &[&BrokerProcess]) -> Self {
        let load = Self {
            ids: Ids::default(),
            answered: Arc::default(),
            is_over: Arc::default(),
            threads: Vec::new(),
        };
        let urls: Vec<String> = nodes.iter().map(|node| node.url()).collect();
        let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.setup.address).collect();
        let over_grpc = load.thread(move |load| load.over_grpc(&urls.join(",")));
        let over_http = load.thread(move |load| load.over_http(&addresses));
        Self { threads: vec![over_grpc, over_http], ..load }
    }

    fn thread(&self, run: impl FnOnce(&Self) + Send + 'static) -> JoinHandle<()> {
        let Self { ids, answered, is_over, .. } = self;
        let load = Self {
            ids: Arc::clone(ids),
            answered: Arc::clone(answered),
            is_over: Arc::clone(is_over),
            threads: Vec::new(),
        };
        std::thread::spawn(move || run(&load))
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    fn note(&self, key: String, id: String) {
        let before = self.ids.lock().unwrap().insert(key, id.clone());
        assert!(before.is_none_or(|before| before == id), "one id per key");
        self.answered.fetch_add(1, Ordering::SeqCst);
    }

    fn over_grpc(&self, urls: &str) {
        runtime().block_on(async {
            let client = Client::builder(urls).timeout(PATIENCE).connect().unwrap();
            let queue = client.queue("orders");
            for number in 0.. {
                if self.is_over() {
                    return;
                }
                let key = format!("grpc-{number}");
                let message = Message::new("lemons").key(&key);
                let answer = in_time(queue.send(message)).await.unwrap();
                self.note(key, answer.id.to_string());
            }
        });
    }

    fn over_http(&self, addresses: &[SocketAddr]) {
        let mut connections: Vec<_> = addresses.iter().map(|it| Connection::new(*it)).collect();
        for number in 0.. {
            if self.is_over() {
                return;
            }
            let key = format!("http-{number}");
            let request = Request::send("orders", &key, "lemons");
            let id = until("an answer over HTTP", || {
                connections.iter_mut().find_map(|connection| {
                    let answer = connection.try_ask(&request).ok()?;
                    assert!(answer.status < 300 || answer.status == 503, "{}", answer.text());
                    (answer.status < 300).then(|| answer.json()["id"].as_str().unwrap().to_owned())
                })
            });
            self.note(key, id);
        }
    }

    /// Waits until this many more messages were answered.
    #[track_caller]
    pub(crate) fn goes_on(&self, more: u64) {
        let from = self.answered.load(Ordering::SeqCst);
        until("more answers", || self.answered.load(Ordering::SeqCst) >= from + more);
    }

    /// Ends the load, and checks that every message that was answered is there, once.
    #[track_caller]
    pub(crate) fn ends_whole(self, nodes: &[&BrokerProcess]) {
        self.is_over.store(true, Ordering::SeqCst);
        for thread in self.threads {
            thread.join().unwrap();
        }
        let ids = self.ids.lock().unwrap();
        assert!(ids.len() > 20, "the load was empty: {}", ids.len());
        runtime().block_on(async {
            let client = client(nodes);
            let queue = client.queue("orders");
            let keys: Vec<&String> = ids.keys().collect();
            let again = keys.iter().map(|key| Message::new("lemons").key(key.as_str()));
            let answers = in_time(queue.send_all(again)).await.unwrap();
            for (key, answer) in keys.iter().zip(answers) {
                let answer = answer.unwrap();
                assert!(!answer.is_new(), "{key} was lost");
                assert_eq!(ids.get(*key), Some(&answer.id.to_string()), "{key}");
            }
            let stats = in_time(Admin::new(client).queue("orders")).await.unwrap().stats.unwrap();
            assert_eq!(stats.ready, ids.len() as u64, "one message per key");
        });
    }
}
