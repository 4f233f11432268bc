//! The one stream that all sends of a client share. Callers submit jobs and wait for their answers;
//! a separate task packs all waiting jobs into frames. It starts with the first send and ends when
//! its client is dropped.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::answer::Answer;
use crate::client::Client;
use crate::error::Error;
use crate::message::Message;
use crate::sender::{Answered, Outbound};

/// The most messages in flight.
const WINDOW: usize = 16_384;
/// The most jobs that wait for the task; further callers wait.
const JOBS_MAX: usize = 1_024;

type Answers = Vec<Result<Answer, Error>>;

/// Messages for one queue, and the channel for their answers.
struct Job {
    queue: Arc<str>,
    messages: Vec<Message>,
    reply: oneshot::Sender<Answers>,
}

/// The handle of the task.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    jobs: Mutex<Option<mpsc::Sender<Job>>>,
    /// Why there is no connection, for callers that time out meanwhile.
    trouble: Arc<Mutex<Option<Error>>>,
}

impl Lane {
    /// Sends messages and returns the answers in the same order.
    pub(crate) async fn send(
        &self,
        client: &Client,
        queue: &Arc<str>,
        messages: Vec<Message>,
        timeout: Duration,
    ) -> Result<Answers, Error> {
        let (reply, receiver) = oneshot::channel();
        let job = Job { queue: Arc::clone(queue), messages, reply };
        let jobs = self.jobs(client);
        let answered = async {
            // The task runs as long as this handle exists.
            let _ = jobs.send(job).await;
            receiver.await
        };
        match tokio::time::timeout(timeout, answered).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(_)) => Err(Error::invalid("the tokio runtime of this client has ended")),
            Err(_) => Err(self.trouble().clone().unwrap_or(Error::TimedOut(timeout))),
        }
    }

    fn jobs(&self, client: &Client) -> mpsc::Sender<Job> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = jobs.as_ref().filter(|jobs| !jobs.is_closed()) {
            return jobs.clone();
        }
        let (sender, receiver) = mpsc::channel(JOBS_MAX);
        let task = Task {
            // The client itself would keep the lane alive, and the lane the task, for ever.
            outbound: Outbound::new(&client.detached()),
            trouble: Arc::clone(&self.trouble),
            waiting: Vec::new(),
            free: Vec::new(),
        };
        tokio::spawn(task.run(receiver));
        *jobs = Some(sender.clone());
        sender
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Option<Error>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A job whose answers are coming in.
struct Waiting {
    answers: Vec<Option<Result<Answer, Error>>>,
    left: usize,
    reply: oneshot::Sender<Answers>,
}

struct Task {
    outbound: Outbound,
    trouble: Arc<Mutex<Option<Error>>>,
    /// The jobs by their number, which is the upper half of their messages' tags.
    waiting: Vec<Option<Waiting>>,
    free: Vec<usize>,
}

impl Task {
    async fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let (mut list, mut answers) = (Vec::new(), Vec::new());
        loop {
            let has_room = self.outbound.room(WINDOW) > 0;
            let is_waiting = self.outbound.unanswered() > 0;
            tokio::select! {
                count = jobs.recv_many(&mut list, JOBS_MAX), if has_room => {
                    if count == 0 {
                        return; // Nobody can wait for an answer any more.
                    }
                    // The runtime runs a task that was woken before those that are ready already.
                    // After them there are more jobs for the same frame.
                    tokio::task::yield_now().await;
                    list.drain(..).for_each(|job| self.start(job));
                    while self.outbound.room(WINDOW) > 0
                        && let Ok(job) = jobs.try_recv()
                    {
                        self.start(job);
                    }
                    self.outbound.flush();
                }
                answered = self.outbound.answers(&mut answers), if is_waiting => {
                    match answered {
                        Ok(()) => self.settle(&mut answers),
                        Err(error) => self.trouble(error),
                    }
                }
            }
        }
    }

    fn start(&mut self, job: Job) {
        let count = job.messages.len();
        if count == 0 {
            let _ = job.reply.send(Vec::new());
            return;
        }
        let mut answers = Vec::new();
        answers.resize_with(count, || None);
        let waiting = Some(Waiting { answers, left: count, reply: job.reply });
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                self.waiting.push(None);
                self.waiting.len() - 1
            }
        };
        if let Some(slot) = self.waiting.get_mut(number) {
            *slot = waiting;
        }
        for (place, message) in job.messages.iter().enumerate() {
            let tag = (number as u64) << 32 | place as u64;
            self.outbound.push(&job.queue, message, tag);
        }
    }

    fn settle(&mut self, answers: &mut Vec<Answered>) {
        self.set_trouble(None);
        for Answered { tag, answer } in answers.drain(..) {
            self.finish(tag, answer);
        }
    }

    fn finish(&mut self, tag: u64, answer: Result<Answer, Error>) {
        let (number, place) = ((tag >> 32) as usize, (tag & u64::from(u32::MAX)) as usize);
        let Some(slot) = self.waiting.get_mut(number) else { return };
        let Some(waiting) = slot else { return };
        if let Some(answered) = waiting.answers.get_mut(place) {
            *answered = Some(answer);
            waiting.left -= 1;
        }
        if waiting.left == 0
            && let Some(done) = slot.take()
        {
            self.free.push(number);
            let _ = done.reply.send(done.answers.into_iter().flatten().collect());
        }
    }

    /// The connection broke. Waiting jobs get their answers from the next one, unless the error is
    /// permanent.
    fn trouble(&mut self, error: Error) {
        if !error.is_retryable() {
            for tag in self.outbound.give_up() {
                self.finish(tag, Err(error.clone()));
            }
            return;
        }
        tracing::debug!(%error, "connecting again");
        self.set_trouble(Some(error));
        let (waiting, free) = (&mut self.waiting, &mut self.free);
        for (number, slot) in waiting.iter_mut().enumerate() {
            if slot.as_ref().is_some_and(|waiting| waiting.reply.is_closed()) {
                *slot = None;
                free.push(number);
            }
        }
        self.outbound.retain(|tag| waiting.get((tag >> 32) as usize).is_some_and(Option::is_some));
    }

    fn set_trouble(&self, error: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}
