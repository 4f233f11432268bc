//! The thread that beats: it tells the other nodes that this one lives, and reads how they are. It
//! has a connection and a thread of its own, so that nothing else delays it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hapax_postgres::judge::Timings;
use hapax_postgres::{
    Database, Failure, Heartbeat, Members, Node, NodeState, Seen, Uuid, Witnesses,
};
use tokio::sync::mpsc;

use super::clock::{SharedClock, boottime};

/// How long one statement of it may take.
const WITHIN: Duration = Duration::from_secs(1);

/// What the thread reports.
#[derive(Debug)]
pub(super) enum Report {
    /// The node has another id: its row was gone.
    Registered(Uuid),
    /// A heartbeat succeeded that was begun at this time, and all rows as they were after it.
    Beaten {
        begun: Duration,
        heartbeat: Heartbeat,
        seen: Seen,
        /// A partition ends before what this machine knows of it: an error with both positions.
        set_back: Option<hapax_store::Error>,
    },
    Missed(Failure),
}

enum Order {
    Beat,
    Forget(Uuid, u64),
    Leave,
}

/// The handle of the thread.
#[derive(Debug)]
pub(super) struct Beats {
    state: Arc<AtomicU8>,
    is_paused: Arc<AtomicBool>,
    orders: Sender<Order>,
    reports: mpsc::UnboundedReceiver<Report>,
    thread: JoinHandle<()>,
}

impl Beats {
    /// Registers the node and starts to beat. Blocks.
    pub(super) fn start(
        database: &Database,
        node: Node,
        clock: Arc<SharedClock>,
        witnesses: Witnesses,
    ) -> Result<(Self, Uuid), Failure> {
        let members = Members::register(database, &node, WITHIN * 5)?;
        let id = members.id();
        let state = Arc::new(AtomicU8::new(NodeState::Standby as u8));
        let is_paused = Arc::new(AtomicBool::new(false));
        let (orders, ordered) = channel();
        let (reporter, reports) = mpsc::unbounded_channel();
        let beater = Beater {
            database: database.clone(),
            node,
            members: Some(members),
            state: Arc::clone(&state),
            is_paused: Arc::clone(&is_paused),
            clock,
            witnesses,
            reporter,
        };
        let thread = std::thread::Builder::new()
            .name("hapax-heartbeat".to_owned())
            .spawn(move || beater.run(&ordered))
            .map_err(|error| Failure::Unreachable(format!("there is no thread: {error}")))?;
        Ok((Self { state, is_paused, orders, reports, thread }, id))
    }

    /// The next report; waits for ever after the thread ended.
    pub(super) async fn next(&mut self) -> Report {
        match self.reports.recv().await {
            Some(report) => report,
            None => std::future::pending().await,
        }
    }

    /// What the node says of itself from now on.
    pub(super) fn set_state(&self, state: NodeState) {
        if self.state.swap(state as u8, Ordering::Relaxed) != state as u8 {
            let _ = self.orders.send(Order::Beat);
        }
    }

    /// Stops to beat, so that others take this node for gone, or goes on.
    pub(super) fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Relaxed);
    }

    pub(super) fn forget(&self, id: Uuid, heartbeat: u64) {
        let _ = self.orders.send(Order::Forget(id, heartbeat));
    }

    /// Deletes the node's row and ends the thread. Blocks.
    pub(super) fn leave(self) {
        let _ = self.orders.send(Order::Leave);
        let _ = self.thread.join();
    }
}

struct Beater {
    database: Database,
    node: Node,
    members: Option<Members>,
    state: Arc<AtomicU8>,
    is_paused: Arc<AtomicBool>,
    clock: Arc<SharedClock>,
    witnesses: Witnesses,
    reporter: mpsc::UnboundedSender<Report>,
}

impl Beater {
    fn run(mut self, orders: &Receiver<Order>) {
        let every = Timings::default().heartbeat;
        loop {
            let begun = boottime();
            if !self.is_paused.load(Ordering::Relaxed) {
                let report = self.beat(begun).unwrap_or_else(Report::Missed);
                if self.reporter.send(report).is_err() {
                    return;
                }
            }
            let left = (begun + every).saturating_sub(boottime());
            match orders.recv_timeout(left) {
                Ok(Order::Beat) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Forget(id, heartbeat)) => self.forget(id, heartbeat),
                Ok(Order::Leave) | Err(RecvTimeoutError::Disconnected) => return self.leave(),
            }
        }
    }

    fn beat(&mut self, begun: Duration) -> Result<Report, Failure> {
        let Some(members) = &self.members else {
            let members = Members::register(&self.database, &self.node, WITHIN)?;
            let id = members.id();
            self.members = Some(members);
            tracing::warn!("this node's row was gone from the database; it has another id now");
            return Ok(Report::Registered(id));
        };
        let state = match self.state.load(Ordering::Relaxed) {
            2 => NodeState::Serving,
            3 => NodeState::Draining,
            4 => NodeState::Halted,
            _ => NodeState::Standby,
        };
        let (told_ms, known) = (self.clock.told_ms(Instant::now()), self.witnesses.known());
        let Some(heartbeat) = members.heartbeat(state, told_ms, &known, WITHIN)? else {
            self.members = None;
            return self.beat(begun);
        };
        let set_back = self.witnesses.note(&known, &heartbeat);
        let seen = members.read(WITHIN)?;
        Ok(Report::Beaten { begun, heartbeat, seen, set_back })
    }

    fn forget(&self, id: Uuid, heartbeat: u64) {
        if let Some(members) = &self.members
            && let Err(error) = members.delete(id, heartbeat, WITHIN)
        {
            tracing::debug!(%error, "cannot delete the row of a node that is gone");
        }
    }

    fn leave(self) {
        if let Some(members) = self.members
            && let Err(error) = members.leave(WITHIN * 3)
        {
            tracing::warn!(%error, "this node's row stays in the database; others forget it later");
        }
    }
}
