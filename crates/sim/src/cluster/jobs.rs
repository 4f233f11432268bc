//! Work that waits for the database, as coroutines: a thread each, of which one runs at a time.
//!
//! The code that ships blocks in its calls. Here a job runs until its next call, and the scheduler
//! goes on with something else until that call is answered. Who runs is decided by the scheduler
//! alone, so a seed runs the same every time.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use hapax_postgres::call::{Answer, Backend, Call};
use hapax_postgres::{Failure, Uuid};

/// What a job does next.
pub(super) enum Event<T> {
    /// Waits for the answer to a call.
    Call(Box<Call>),
    /// Waits a moment.
    Pause,
    /// Wants an id.
    Draw,
    Done(T),
    /// It panicked.
    Panicked(Box<dyn Any + Send>),
    /// Its process was killed.
    Killed,
}

/// What a job goes on with.
pub(super) enum Reply {
    Answer(Result<Answer, Failure>),
    /// The pause is over; false if there was no use in it.
    GoOn(bool),
    Drawn(Uuid),
    /// The process was killed.
    Kill,
}

/// What ends a job whose process was killed.
struct Killed;

enum Asked {
    Call(Box<Call>),
    Pause,
    Draw,
}

/// The job's side of the line to the scheduler.
struct Line {
    asks: Box<dyn Fn(Asked)>,
    replies: Receiver<Reply>,
}

thread_local! {
    static LINE: RefCell<Option<Line>> = const { RefCell::new(None) };
}

/// A thread for jobs.
pub(super) struct Worker<T> {
    orders: Option<Sender<Box<dyn FnOnce() -> T + Send>>>,
    replies: Sender<Reply>,
    events: Receiver<Event<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Worker<T> {
    pub(super) fn new() -> Self {
        let (orders, ordered) = channel::<Box<dyn FnOnce() -> T + Send>>();
        let (replies, replied) = channel();
        let (reporter, events) = channel();
        let thread = std::thread::spawn(move || {
            let asking = reporter.clone();
            let asks = Box::new(move |asked| {
                let _ = asking.send(match asked {
                    Asked::Call(call) => Event::Call(call),
                    Asked::Pause => Event::Pause,
                    Asked::Draw => Event::Draw,
                });
            });
            LINE.with(|line| *line.borrow_mut() = Some(Line { asks, replies: replied }));
            while let Ok(job) = ordered.recv() {
                let event = match catch_unwind(AssertUnwindSafe(job)) {
                    Ok(done) => Event::Done(done),
                    Err(panic) if panic.is::<Killed>() => Event::Killed,
                    Err(panic) => Event::Panicked(panic),
                };
                if reporter.send(event).is_err() {
                    return;
                }
            }
        });
        Self { orders: Some(orders), replies, events, thread: Some(thread) }
    }

    /// Runs a job until it waits for something.
    pub(super) fn start(&self, job: impl FnOnce() -> T + Send + 'static) -> Event<T> {
        if let Some(orders) = &self.orders {
            let _ = orders.send(Box::new(job));
        }
        self.next()
    }

    /// Lets it go on until it waits again.
    pub(super) fn resume(&self, reply: Reply) -> Event<T> {
        let _ = self.replies.send(reply);
        self.next()
    }

    fn next(&self) -> Event<T> {
        self.events.recv().unwrap_or(Event::Killed)
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        // A job that waits is told, one by one, until it has ended.
        self.orders = None;
        let _ = self.replies.send(Reply::Kill);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ask(asked: Asked) -> Reply {
    let reply = LINE.with(|line| {
        let line = line.borrow();
        let line = line.as_ref()?;
        (line.asks)(asked);
        line.replies.recv().ok()
    });
    match reply {
        Some(Reply::Kill) | None => resume_unwind(Box::new(Killed)),
        Some(reply) => reply,
    }
}

/// Lets time pass while an owner waits for its lane. False if it has waited for long enough.
pub(super) fn pass() -> bool {
    matches!(ask(Asked::Pause), Reply::GoOn(true))
}

/// The database as a job sees it.
#[derive(Debug)]
pub(super) struct Remote;

impl Backend for Remote {
    fn call(&self, call: Call) -> Result<Answer, Failure> {
        match ask(Asked::Call(Box::new(call))) {
            Reply::Answer(outcome) => outcome,
            _ => Err(Failure::Unreachable("it answered something else".to_owned())),
        }
    }

    fn pause(&self) {
        pass();
    }

    fn draw(&self) -> Result<Uuid, String> {
        match ask(Asked::Draw) {
            Reply::Drawn(id) => Ok(id),
            _ => Err("nothing was drawn".to_owned()),
        }
    }
}
