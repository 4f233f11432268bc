//! One run: starts everything, lets customers order, kills processes, and at the end counts the
//! charges of every order.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use hapax_client::{Admin, Client, Retry};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::Arguments;
use crate::api::Order;
use crate::children::{Children, free_address};
use crate::customers::Customers;
use crate::database::{Database, Totals, message};
use crate::faults::Faults;
use crate::screen::{Screen, State};
use crate::services::FakeServices;
use crate::wire::Wire;

/// Short leases, so that the messages of a killed worker are redelivered soon; attempts are
/// practically unlimited.
const ORDERS: &str = r#"{"lease_ms":1500,"max_attempts":100000,
                         "backoff_min_ms":0,"backoff_max_ms":100}"#;
const TICK: Duration = Duration::from_millis(100);
/// How long a run may make no progress.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long answers are lost before the connection breaks.
const LOSSY: Duration = Duration::from_millis(120);
/// Messages that are sent again after a crash of the broker.
const PROBES: u32 = 5;
const VICTIMS: [&str; 6] = ["broker", "worker 1", "wire", "api", "relay", "worker 2"];

struct Run {
    name: String,
    orders: u32,
    database: Database,
    services: FakeServices,
    victims: mpsc::UnboundedReceiver<u32>,
    wire: Wire,
    children: Children,
    /// A direct connection, without the lossy link.
    broker: Client,
    /// Which process to kill when a number of orders is paid.
    plan: VecDeque<(u32, &'static str)>,
    probes: JoinSet<Result<Probed>>,
    /// Duplicates that the broker has counted, including those of probes.
    duplicates: u64,
    probed: u64,
    forgotten: u64,
    state: State,
    // Removed at the end, after the processes.
    _directory: tempfile::TempDir,
}

/// What the broker remembered after a crash.
#[derive(Debug, Default)]
struct Probed {
    known: u64,
    forgotten: u64,
}

pub(crate) async fn run(arguments: &Arguments) -> Result<()> {
    let (mut run, api) = Run::open(arguments).await?;
    let customers = Customers {
        api,
        run: run.name.clone(),
        faults: Faults::new(arguments.seed, arguments.chaos),
        services: run.services.clone(),
        orders: arguments.orders,
    };
    let customers = tokio::spawn(customers.order_everything(arguments.customers));
    let mut screen = Screen::new();
    run.until_paid(customers, &mut screen).await?;
    run.finish().await?;
    screen.close(&run.state);
    run.report(arguments)
}

impl Run {
    /// Starts everything, and returns the address of the API.
    async fn open(arguments: &Arguments) -> Result<(Self, SocketAddr)> {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| -> Result<String> {
            let path = directory.path().join(name);
            Ok(path.to_str().context("the directory's name is no text")?.to_owned())
        };
        let url = match &arguments.database {
            Some(url) => url.clone(),
            None => format!("sqlite://{}", path("orders.db")?),
        };
        let database = Database::open(&url).await?;
        database.migrate().await?;
        let faults = Faults::new(arguments.seed, arguments.chaos);
        let (services, services_address, victims) = FakeServices::open(faults).await?;
        let mut ports = fastrand::Rng::new();
        let (broker_address, api) = (free_address(&mut ports)?, free_address(&mut ports)?);
        let wire = Wire::to(broker_address).await?;
        let name = hapax_client::new_key();
        let mut children = Children::default();
        children.start("broker", &["broker", &broker_address.to_string(), &path("data")?])?;
        let broker = Client::connect(&format!("http://{broker_address}"))?;
        make_queues(&broker).await?;
        let server = format!("http://{}", wire.address);
        let services_address = services_address.to_string();
        let around = [name.as_str(), &server, &url, &services_address];
        let api_address = api.to_string();
        children.start("api", &[&["api", &api_address], &around[..]].concat())?;
        for (name, part) in [("relay", "relay"), ("worker 1", "worker"), ("worker 2", "worker")] {
            children.start(name, &[&[part], &around[..]].concat())?;
        }
        let state = State { orders: arguments.orders, ..State::default() };
        let run = Self {
            name,
            orders: arguments.orders,
            database,
            services,
            victims,
            wire,
            children,
            broker,
            plan: plan(faults, arguments),
            probes: JoinSet::new(),
            duplicates: 0,
            probed: 0,
            forgotten: 0,
            state,
            _directory: directory,
        };
        Ok((run, api))
    }

    /// Runs until every order is paid, or there is no more progress.
    async fn until_paid(
        &mut self,
        customers: JoinHandle<Result<()>>,
        screen: &mut Screen,
    ) -> Result<()> {
        let mut customers = Some(customers);
        let mut ticks = tokio::time::interval(TICK);
        let mut moved = (Instant::now(), Totals::default());
        loop {
            tokio::select! {
                Some(process) = self.victims.recv() => {
                    self.children.kill(|_, id| id == process)?;
                }
                _ = ticks.tick() => {
                    self.look().await?;
                    self.kill_due().await?;
                    self.children.are_alive()?;
                    screen.show(&self.state);
                }
            }
            if let Some(finished) = customers.take_if(|customers| customers.is_finished()) {
                finished.await??;
            }
            if customers.is_none() && self.plan.is_empty() && self.state.totals.paid == self.orders
            {
                return Ok(());
            }
            if moved.1 != self.state.totals {
                moved = (Instant::now(), self.state.totals);
            }
            ensure!(moved.0.elapsed() < PATIENCE, "nothing moves any more: {:?}", self.state);
        }
    }

    /// Updates all counts.
    async fn look(&mut self) -> Result<()> {
        self.state.totals = self.database.totals(&self.name).await?;
        while let Some(probed) = self.probes.try_join_next() {
            self.take_probe(probed??);
        }
        let looking = Admin::new(self.broker.clone());
        // A broker that is down is asked later.
        if let Ok(Ok(queue)) = tokio::time::timeout(TICK * 5, looking.queue("orders")).await {
            let counted = queue.stats.unwrap_or_default().duplicate_total;
            // The count may decrease over a crash: no rule depends on it.
            let more = counted.checked_sub(self.duplicates).unwrap_or(counted);
            self.duplicates = counted;
            let of_probes = more.min(self.probed);
            self.probed -= of_probes;
            self.services.ledger().absorb(2, more - of_probes);
        }
        let ledger = self.services.ledger();
        (self.state.charges, self.state.calls) = (ledger.charges(), ledger.calls);
        self.state.absorbed = ledger.absorbed;
        drop(ledger);
        self.state.kills.clear();
        for (name, kills) in self.children.kills() {
            let kind = name.split(' ').next().unwrap_or(name);
            *self.state.kills.entry(kind.to_owned()).or_default() += kills;
        }
        Ok(())
    }

    fn take_probe(&mut self, probed: Probed) {
        self.services.ledger().absorb(3, probed.known);
        self.probed += probed.known;
        self.forgotten += probed.forgotten;
    }

    /// Kills the processes that are due.
    async fn kill_due(&mut self) -> Result<()> {
        let paid = self.state.totals.paid;
        let Some((_, victim)) = self.plan.pop_front_if(|(due, _)| *due <= paid) else {
            return Ok(());
        };
        if victim == "wire" {
            self.state.cuts += 1;
            let wire = self.wire.clone();
            tokio::spawn(async move { wire.fail(LOSSY).await });
            return Ok(());
        }
        self.children.kill(|name, _| name == victim)?;
        if victim == "broker" {
            let some = self.database.some_paid(&self.name, PROBES).await?;
            self.probes.spawn(probe(self.broker.clone(), self.name.clone(), some));
        }
        Ok(())
    }

    /// Waits for what is in progress, and updates the counts a last time.
    async fn finish(&mut self) -> Result<()> {
        while let Some(probed) = self.probes.join_next().await {
            self.take_probe(probed??);
        }
        self.look().await
    }

    fn report(&self, arguments: &Arguments) -> Result<()> {
        let by_order = self.services.ledger().charges_by_order();
        let once = by_order.values().filter(|&&charges| charges == 1).count();
        let twice = by_order.len() - once;
        let never = self.orders as usize - by_order.len();
        let Totals { placed, payments, .. } = self.state.totals;
        println!(
            "of {} orders exactly {once} were charged once: {twice} more than once, {never} never; \
             {placed} rows of orders, {payments} of payments (seed {})",
            self.orders, arguments.seed
        );
        let all = self.orders;
        ensure!(once == all as usize && twice == 0, "an order was not charged exactly once");
        ensure!(placed == all && payments == all, "an order was not written down exactly once");
        ensure!(self.forgotten == 0, "the broker forgot {} keys in a crash", self.forgotten);
        Ok(())
    }
}

async fn make_queues(broker: &Client) -> Result<()> {
    let admin = Admin::new(broker.clone());
    let mut retry = Retry::within(PATIENCE);
    for (queue, rules) in [("orders", ORDERS), ("http", "{}")] {
        retry.run(|| admin.put_queue(queue, rules, None)).await?;
    }
    Ok(())
}

/// Which processes to kill, and when, in an order drawn from the seed.
fn plan(faults: Faults, arguments: &Arguments) -> VecDeque<(u32, &'static str)> {
    if faults.are_off() {
        return VecDeque::new();
    }
    let mut random = fastrand::Rng::with_seed(arguments.seed);
    let count = (arguments.orders / 8).max(12);
    let mut victims: Vec<&'static str> = Vec::new();
    (0..count)
        .map(|number| {
            if victims.is_empty() {
                victims = VICTIMS.to_vec();
                random.shuffle(&mut victims);
            }
            let due = u64::from(arguments.orders) * u64::from(number + 1) / u64::from(count + 1);
            (u32::try_from(due).unwrap_or(u32::MAX), victims.pop().unwrap_or("broker"))
        })
        .collect()
}

/// Sends messages again that the broker accepted before its crash, like a sender that got no
/// answer.
async fn probe(broker: Client, run: String, orders: Vec<Order>) -> Result<Probed> {
    let mut probed = Probed::default();
    for order in orders {
        match broker.queue("orders").send(message(&run, order)?).await?.is_new() {
            true => probed.forgotten += 1,
            false => probed.known += 1,
        }
    }
    Ok(probed)
}
