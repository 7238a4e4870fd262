BEGIN TRANSACTION;
CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    scopes TEXT NOT NULL,
    user_id TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    created_at REAL NOT NULL,
    expires_at REAL NOT NULL DEFAULT 0,
    revoked_at REAL NOT NULL DEFAULT 0,
    last_used_at REAL NOT NULL DEFAULT 0,
    change INTEGER NOT NULL UNIQUE
) WITHOUT ROWID;
INSERT INTO "api_keys" VALUES('ycj34zavvrvp','old',X'7BBC57DE029243399636F89EDF0701B64182480133570CEA9A695F140BF21D93','agents:run rag:query rag:write runs:decide runs:read sessions:read workflows:read workflows:run','key:ycj34zavvrvp','default',1795417937.678108,0.0,0.0,1795417939.04161,1);
CREATE TABLE budget_accounts (
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    name TEXT NOT NULL,
    owner TEXT NOT NULL,
    expires_at REAL NOT NULL,
    tokens REAL NOT NULL,
    cost_usd REAL NOT NULL,
    tool_calls REAL NOT NULL,
    wall_seconds REAL NOT NULL,
    PRIMARY KEY (kind, tenant, agent, name)
) WITHOUT ROWID;
INSERT INTO "budget_accounts" VALUES('day','default','teller','2026-11-23 key:ycj34zavvrvp','key:ycj34zavvrvp',1795564800.0,79.0,0.0,4.0,2.7531279000186259509e-02);
CREATE TABLE budget_holds (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    name TEXT NOT NULL,
    run_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at REAL NOT NULL,
    tokens REAL NOT NULL,
    cost_usd REAL NOT NULL,
    tool_calls REAL NOT NULL,
    wall_seconds REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO "budget_holds" VALUES('a560c8034f19f46b8ec6a0bc','day','default','teller','2026-11-23 key:ycj34zavvrvp','run_01M83KZCR35NFT7AQF336KFYGG','b_f2c650763f793234',1795417954.837513,0.0,0.0,0.0,120.0);
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    session_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    expires_at REAL NOT NULL,
    event TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,'default','teller','s-1','key:ycj34zavvrvp',0.0,'{"event":"tool_call","tool":"charge","arguments":{"query":"round 0"},"ok":true,"result":"charged round 0","run_id":"run_01M83KZ731VAXVD7KQ5MBB23GZ"}');
INSERT INTO "events" VALUES(2,'default','teller','s-1','key:ycj34zavvrvp',0.0,'{"event":"run","run_id":"run_01M83KZ731VAXVD7KQ5MBB23GZ","provider":"model","model":"mock+tools=1+say=Both_are_done.","latency_ms":11.639,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0}}');
INSERT INTO "events" VALUES(3,'default','teller','s-1','key:ycj34zavvrvp',0.0,'{"event":"tool_call","tool":"charge","arguments":{"query":"round 0"},"ok":true,"result":"charged round 0","run_id":"run_01M83KZ73G86EB8SY7X4ZG54Q2"}');
INSERT INTO "events" VALUES(4,'default','teller','s-1','key:ycj34zavvrvp',0.0,'{"event":"run","run_id":"run_01M83KZ73G86EB8SY7X4ZG54Q2","provider":"model","model":"mock+tools=1+say=Both_are_done.","latency_ms":7.683,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0}}');
INSERT INTO "events" VALUES(5,'default','teller','s-1','key:ycj34zavvrvp',0.0,'{"event":"tool_call","tool":"charge","arguments":{"query":"round 0"},"ok":true,"result":"charged round 0","run_id":"run_01M83KZ7D6XXM4YP3DE79RC0P9"}');
INSERT INTO "events" VALUES(6,'default','teller','s-1','key:ycj34zavvrvp',0.0,'{"event":"run","run_id":"run_01M83KZ7D6XXM4YP3DE79RC0P9","provider":"model","model":"mock+tools=1+say=Both_are_done.","latency_ms":13.527,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0}}');
CREATE TABLE idempotency_keys (
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    run_id TEXT NOT NULL,
    expires_at REAL NOT NULL,
    PRIMARY KEY (tenant, owner, route, key)
) WITHOUT ROWID;
CREATE TABLE run_ends (
    run_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    owner TEXT,
    asked_at REAL NOT NULL,
    answer TEXT
) WITHOUT ROWID;
CREATE TABLE run_events (
    run_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    ts REAL NOT NULL,
    type TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, seq)
) WITHOUT ROWID;
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',1,1795417939.371471,'run.started','{"run_id":"run_01M83KZ7D6XXM4YP3DE79RC0P9","agent":"teller","session_id":"s-1","trace_id":"b3265cb0c97c31356156dbf489df5aea","parent":""}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',2,1795417939.371840,'guardrails.checked','{"stage":"input","actions":0,"duration_ms":0.017}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',3,1795417939.372812,'memory.loaded','{"turns":4,"semantic":0,"episodic":4,"degraded":[],"duration_ms":0.924}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',4,1795417939.372850,'prompt.rendered','{"characters":15,"duration_ms":0.018}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',5,1795417939.372870,'tools.listed','{"count":1}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',6,1795417939.372959,'node.started','{"node":"react"}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',7,1795417939.373066,'model.started','{"step":1,"role":"assistant","tools":1}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',8,1795417939.377185,'model.finished','{"step":1,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":1.419,"tool_calls":1}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',9,1795417939.382462,'tool.started','{"id":"call_5_0","name":"charge","arguments":{"query":"round 0"}}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',10,1795417939.383033,'tool.finished','{"id":"call_5_0","name":"charge","ok":true,"duration_ms":0.54,"untrusted":true}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',11,1795417939.383195,'node.finished','{"node":"react","duration_ms":10.23}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',12,1795417939.383221,'node.started','{"node":"react"}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',13,1795417939.383299,'model.started','{"step":2,"role":"assistant","tools":1}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',14,1795417939.384333,'model.delta','{"step":2,"role":"assistant","content":"Both "}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',15,1795417939.384364,'model.delta','{"step":2,"role":"assistant","content":"are "}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',16,1795417939.384379,'model.delta','{"step":2,"role":"assistant","content":"done. "}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',17,1795417939.384539,'model.finished','{"step":2,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":0.952,"tool_calls":0,"first_token_ms":1.003}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',18,1795417939.384768,'node.finished','{"node":"react","duration_ms":1.541}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',19,1795417939.384838,'guardrails.checked','{"stage":"output","actions":0,"duration_ms":0.008}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',20,1795417939.385324,'memory.persisted','{"turns":2,"duration_ms":0.461}');
INSERT INTO "run_events" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9',21,1795417939.385374,'run.completed','{"response":"Both are done. ","agent":"teller","session_id":"s-1","run_id":"run_01M83KZ7D6XXM4YP3DE79RC0P9","metadata":{"provider":"model","model":"mock+tools=1+say=Both_are_done.","tokens_used":23,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"tools_called":["charge"],"pattern":"react","iterations":2,"stop_reason":"completed","finish_reason":"stop","attempts":[],"latency_ms":13.95,"trace_id":"b3265cb0c97c31356156dbf489df5aea","guardrails":[]}}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',1,1795417939.434241,'run.started','{"run_id":"run_01M83KZ7F6CDTQ6ZE55CDAB5KQ","agent":"payer","session_id":"s-2","trace_id":"9a538423dc63b63df7b6783cef721501","parent":""}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',2,1795417939.434343,'guardrails.checked','{"stage":"input","actions":0,"duration_ms":0.014}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',3,1795417939.434731,'memory.loaded','{"turns":0,"semantic":0,"episodic":0,"degraded":[],"duration_ms":0.351}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',4,1795417939.434828,'prompt.rendered','{"characters":14,"duration_ms":0.083}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',5,1795417939.434843,'tools.listed','{"count":1}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',6,1795417939.43512,'node.started','{"node":"react"}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',7,1795417939.435201,'model.started','{"step":1,"role":"assistant","tools":1}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',8,1795417939.438675,'model.finished','{"step":1,"role":"assistant","provider":"model","model":"mock+tools=1+say=Paid.","usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":3.354,"tool_calls":1}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',9,1795417939.442324,'tool.started','{"id":"call_7_0","name":"charge","arguments":{"query":"round 0"}}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',10,1795417939.492937,'node.finished','{"node":"react","duration_ms":57.804}');
INSERT INTO "run_events" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ',11,1795417939.493092,'run.waiting','{"approval":{"run_id":"run_01M83KZ7F6CDTQ6ZE55CDAB5KQ","kind":"approval","name":"charge","arguments":{"query":"round 0"},"question":"","asked_at":1795417939.442421,"expires_at":1796022739.442421,"path":"react/tool:call_7_0/approval","n":1,"asking_agent":"payer"}}');
INSERT INTO "run_events" VALUES('run_01M83KZCR35NFT7AQF336KFYGG',1,1795417944.837392,'run.started','{"run_id":"run_01M83KZCR35NFT7AQF336KFYGG","agent":"teller","session_id":"s-3","trace_id":"24f1cc0e30311f16447fbf6ca55a38b0","parent":""}');
INSERT INTO "run_events" VALUES('run_01M83KZCR35NFT7AQF336KFYGG',2,1795417944.842539,'guardrails.checked','{"stage":"input","actions":0,"duration_ms":0.023}');
INSERT INTO "run_events" VALUES('run_01M83KZCR35NFT7AQF336KFYGG',3,1795417944.844226,'memory.loaded','{"turns":0,"semantic":0,"episodic":0,"degraded":[],"duration_ms":1.628}');
INSERT INTO "run_events" VALUES('run_01M83KZCR35NFT7AQF336KFYGG',4,1795417944.844345,'prompt.rendered','{"characters":15,"duration_ms":0.093}');
INSERT INTO "run_events" VALUES('run_01M83KZCR35NFT7AQF336KFYGG',5,1795417944.844368,'tools.listed','{"count":1}');
INSERT INTO "run_events" VALUES('run_01M83KZCR35NFT7AQF336KFYGG',6,1795417944.844683,'node.started','{"node":"react"}');
INSERT INTO "run_events" VALUES('run_01M83KZCR35NFT7AQF336KFYGG',7,1795417944.844785,'model.started','{"step":1,"role":"assistant","tools":1}');
INSERT INTO "run_events" VALUES('run_01M83KZCR35NFT7AQF336KFYGG',8,1795417944.870246,'model.finished','{"step":1,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":24.381,"tool_calls":1}');
INSERT INTO "run_events" VALUES('run_01M83KZCR35NFT7AQF336KFYGG',9,1795417944.870699,'tool.started','{"id":"call_8_0","name":"charge","arguments":{"query":"round 0"}}');
INSERT INTO "run_events" VALUES('run_01M83KZCR35NFT7AQF336KFYGG',10,1795417944.954433,'tool.finished','{"id":"call_8_0","name":"charge","ok":true,"duration_ms":83.699,"untrusted":true}');
CREATE TABLE run_steps (
    run_id TEXT NOT NULL,
    path TEXT NOT NULL,
    n INTEGER NOT NULL,
    kind TEXT NOT NULL,
    request_hash TEXT NOT NULL,
    state TEXT NOT NULL,
    output TEXT,
    PRIMARY KEY (run_id, path, n)
) WITHOUT ROWID;
INSERT INTO "run_steps" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9','input',1,'value','','done','{"query":"Charge it again.","actions":[],"history":null,"preface":[]}');
INSERT INTO "run_steps" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9','kept',1,'value','','done','{}');
INSERT INTO "run_steps" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9','memory',1,'value','','done','{"history":[{"role":"user","content":"What is owed?","tool_calls":[],"tool_call_id":"","name":"","images":[]},{"role":"assistant","content":"Both are done.","tool_calls":[],"tool_call_id":"","name":"","images":[]},{"role":"user","content":"Charge it.","tool_calls":[],"tool_call_id":"","name":"","images":[]},{"role":"assistant","content":"Both are done.","tool_calls":[],"tool_call_id":"","name":"","images":[]}],"semantic":[],"episodic":[{"event":"tool_call","tool":"charge","arguments":{"query":"round 0"},"ok":true,"result":"charged round 0","run_id":"run_01M83KZ731VAXVD7KQ5MBB23GZ"},{"event":"run","run_id":"run_01M83KZ731VAXVD7KQ5MBB23GZ","provider":"model","model":"mock+tools=1+say=Both_are_done.","latency_ms":11.639,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0}},{"event":"tool_call","tool":"charge","arguments":{"query":"round 0"},"ok":true,"result":"charged round 0","run_id":"run_01M83KZ73G86EB8SY7X4ZG54Q2"},{"event":"run","run_id":"run_01M83KZ73G86EB8SY7X4ZG54Q2","provider":"model","model":"mock+tools=1+say=Both_are_done.","latency_ms":7.683,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0}}],"owner":"key:ycj34zavvrvp","degraded":[]}');
INSERT INTO "run_steps" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9','react',1,'model','2016f41c56585809130bd01c11ee5fe0dbf1c7ebf162e2c47a16fb729d848b01','done','{"step":1,"result":{"content":"","tool_calls":[["call_5_0","charge","{\"query\":\"round 0\"}",""]],"usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"provider":"model","model":"mock+tools=1+say=Both_are_done.","finish_reason":"tool_calls","attempts":[],"latency_ms":1.4189399998940644}}');
INSERT INTO "run_steps" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9','react',2,'model','bbc3ba261b739d134b9715cc3af3cb12a2877b6cdfb233c3576ec888103bf643','done','{"step":2,"result":{"content":"Both are done. ","tool_calls":[],"usage":{"input_tokens":10,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"provider":"model","model":"mock+tools=1+say=Both_are_done.","finish_reason":"stop","attempts":[],"latency_ms":0.9521380000023782}}');
INSERT INTO "run_steps" VALUES('run_01M83KZ7D6XXM4YP3DE79RC0P9','react/tool:call_5_0',1,'tool','90233e79c2fe118f106a8bcd1c1313991797725a00b79e1103907a014f0a2c38','done','{"content":"charged round 0","ok":true,"error":"","duration_ms":0.282,"value":"charged round 0","ends_run":false,"untrusted":true}');
INSERT INTO "run_steps" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ','input',1,'value','','done','{"query":"Pay.","actions":[],"history":null,"preface":[]}');
INSERT INTO "run_steps" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ','memory',1,'value','','done','{"history":[],"semantic":[],"episodic":[],"owner":"","degraded":[]}');
INSERT INTO "run_steps" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ','react',1,'model','c7dac74a572a818360073a72f816003e124efc13086f31e01baad17e7ef468cb','done','{"step":1,"result":{"content":"","tool_calls":[["call_7_0","charge","{\"query\":\"round 0\"}",""]],"usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"provider":"model","model":"mock+tools=1+say=Paid.","finish_reason":"tool_calls","attempts":[],"latency_ms":3.353692000018782}}');
INSERT INTO "run_steps" VALUES('run_01M83KZ7F6CDTQ6ZE55CDAB5KQ','react/tool:call_7_0/approval',1,'wait','90233e79c2fe118f106a8bcd1c1313991797725a00b79e1103907a014f0a2c38','intent','{"kind":"approval","name":"charge","arguments":{"query":"round 0"},"question":"","path":"react/tool:call_7_0/approval","n":1,"asked_at":1795417939.442421,"expires_at":1796022739.442421,"parameters":{"additionalProperties":false,"properties":{"query":{"type":"string"}},"required":["query"],"type":"object"},"agent":"payer","left":119.94121862399993}');
INSERT INTO "run_steps" VALUES('run_01M83KZCR35NFT7AQF336KFYGG','input',1,'value','','done','{"query":"Charge.","actions":[],"history":null,"preface":[]}');
INSERT INTO "run_steps" VALUES('run_01M83KZCR35NFT7AQF336KFYGG','memory',1,'value','','done','{"history":[],"semantic":[],"episodic":[],"owner":"","degraded":[]}');
INSERT INTO "run_steps" VALUES('run_01M83KZCR35NFT7AQF336KFYGG','react',1,'model','c18b4c2827ed14fb422a79854ed7d4e26410b23f0a79058939a4dab2bd60ba0d','done','{"step":1,"result":{"content":"","tool_calls":[["call_8_0","charge","{\"query\":\"round 0\"}",""]],"usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"provider":"model","model":"mock+tools=1+say=Both_are_done.","finish_reason":"tool_calls","attempts":[],"latency_ms":24.38118800000666}}');
INSERT INTO "run_steps" VALUES('run_01M83KZCR35NFT7AQF336KFYGG','react/tool:call_8_0',1,'tool','90233e79c2fe118f106a8bcd1c1313991797725a00b79e1103907a014f0a2c38','done','{"content":"charged round 0","ok":true,"error":"","duration_ms":83.359,"value":"charged round 0","ends_run":false,"untrusted":true}');
CREATE TABLE run_traces (
    run_id TEXT PRIMARY KEY,
    events TEXT NOT NULL
) WITHOUT ROWID;
INSERT INTO "run_traces" VALUES('run_01M83KZ731VAXVD7KQ5MBB23GZ','[[1,1795417939.0420194,"run.started",{}],[2,1795417939.0479887,"guardrails.checked",{"stage":"input","actions":0,"duration_ms":0.024}],[3,1795417939.0493457,"memory.loaded",{"turns":0,"semantic":0,"episodic":0,"degraded":[],"duration_ms":1.323}],[4,1795417939.0494583,"prompt.rendered",{"characters":15,"duration_ms":0.089}],[5,1795417939.0494769,"tools.listed",{}],[8,1795417939.051769,"model.finished",{"step":1,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":1.447,"tool_calls":1}],[10,1795417939.052451,"tool.finished",{"id":"call_1_0","name":"charge","ok":true,"duration_ms":0.576,"untrusted":true}],[14,1795417939.053465,"model.finished",{"step":2,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":0.582,"tool_calls":0}],[16,1795417939.0535674,"guardrails.checked",{"stage":"output","actions":0,"duration_ms":0.014}],[17,1795417939.0541823,"memory.persisted",{"turns":2,"duration_ms":0.588}],[18,1795417939.054241,"run.completed",{}]]');
INSERT INTO "run_traces" VALUES('run_01M83KZ73G86EB8SY7X4ZG54Q2','[[1,1795417939.0561619,"run.started",{}],[2,1795417939.056491,"guardrails.checked",{"stage":"input","actions":0,"duration_ms":0.015}],[3,1795417939.0576484,"memory.loaded",{"turns":2,"semantic":0,"episodic":2,"degraded":[],"duration_ms":1.141}],[4,1795417939.0576768,"prompt.rendered",{"characters":15,"duration_ms":0.015}],[5,1795417939.0576885,"tools.listed",{}],[8,1795417939.0623722,"model.finished",{"step":1,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":4.162,"tool_calls":1}],[10,1795417939.062843,"tool.finished",{"id":"call_3_0","name":"charge","ok":true,"duration_ms":0.394,"untrusted":true}],[14,1795417939.0637138,"model.finished",{"step":2,"role":"assistant","provider":"model","model":"mock+tools=1+say=Both_are_done.","usage":{"input_tokens":10,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"attempts":[],"duration_ms":0.536,"tool_calls":0}],[16,1795417939.0637894,"guardrails.checked",{"stage":"output","actions":0,"duration_ms":0.01}],[17,1795417939.064092,"memory.persisted",{"turns":2,"duration_ms":0.286}],[18,1795417939.0641296,"run.completed",{}]]');
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run_id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    agent TEXT NOT NULL,
    session_id TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    parent TEXT NOT NULL,
    status TEXT NOT NULL,
    durable INTEGER NOT NULL,
    segment INTEGER NOT NULL,
    worker TEXT NOT NULL,
    priority INTEGER NOT NULL,
    cancelling INTEGER NOT NULL DEFAULT 0,
    created_at REAL NOT NULL,
    queued_at REAL NOT NULL,
    finished_at REAL NOT NULL,
    deadline_at REAL NOT NULL,
    wake_at REAL NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    cost_usd REAL NOT NULL,
    estimated INTEGER NOT NULL,
    request TEXT NOT NULL,
    manifest TEXT,
    caller TEXT NOT NULL,
    result TEXT,
    error TEXT,
    attempts TEXT NOT NULL,
    waiting_for TEXT
, ordered INTEGER NOT NULL DEFAULT 0);
INSERT INTO "runs" VALUES(1,'run_01M83KZ7D6XXM4YP3DE79RC0P9','default','key:ycj34zavvrvp','teller','s-1','b3265cb0c97c31356156dbf489df5aea','','completed',1,1,'host-16141-e9a58b69',0,0,1795417939.366354,1795417939.370278,1795417939.385483,1795418059.371774,0.0,20,3,0,0.0,0,'{"query":"Charge it again.","context":{},"session_id":"s-1","journal":1,"metadata":{}}','{"source":"apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: teller}\nspec:\n  model: {primary: {provider: model, model: \"mock+tools=1+say=Both_are_done.\"}}\n  prompts: {system: \"You are {{ agent_name }}.\"}\n  tools: [{name: charge, type: internal, function: \"effects:charge\", effect: write}]\n  memory:\n    conversational: {backend: \"${MEMORY:-sqlite}\"}\n    episodic: {backend: \"${MEMORY:-sqlite}\"}\n    semantic:\n      backend: \"${PASSAGES:-sqlite}\"\n      embeddings: {provider: hashing, dimensions: 16}\n      auto_index: true\n  budgets: {per_principal_daily: {tool_calls: 100}}\n"}','{"user_id":"key:ycj34zavvrvp","tenant_id":"default","roles":[],"scopes":["agents:run","rag:query","rag:write","runs:decide","runs:read","sessions:read","workflows:read","workflows:run"],"metadata":{"key_id":"ycj34zavvrvp","key":"old"},"had_token":false}','{"response":"Both are done. ","agent":"teller","session_id":"s-1","run_id":"run_01M83KZ7D6XXM4YP3DE79RC0P9","metadata":{"provider":"model","model":"mock+tools=1+say=Both_are_done.","tokens_used":23,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"tools_called":["charge"],"pattern":"react","iterations":2,"stop_reason":"completed","finish_reason":"stop","attempts":[],"latency_ms":13.95,"trace_id":"b3265cb0c97c31356156dbf489df5aea","guardrails":[]}}',NULL,'[]',NULL,1);
INSERT INTO "runs" VALUES(2,'run_01M83KZ7F6CDTQ6ZE55CDAB5KQ','default','key:ycj34zavvrvp','payer','s-2','9a538423dc63b63df7b6783cef721501','','waiting',1,1,'host-16141-e9a58b69',0,0,1795417939.430472,1795417939.430662,0.0,0.0,1796022739.442421,10,0,0,0.0,0,'{"query":"Pay.","session_id":"s-2","context":{},"metadata":{},"journal":1}','{"source":"apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: payer}\nspec:\n  model: {primary: {provider: model, model: \"mock+tools=1+say=Paid.\"}}\n  prompts: {system: \"You are {{ agent_name }}.\"}\n  tools: [{name: charge, type: internal, function: \"effects:charge\", effect: write, approval: required}]\n  memory: {conversational: {backend: \"${MEMORY:-sqlite}\"}}\n"}','{"user_id":"key:ycj34zavvrvp","tenant_id":"default","roles":[],"scopes":["agents:run","rag:query","rag:write","runs:decide","runs:read","sessions:read","workflows:read","workflows:run"],"metadata":{"key_id":"ycj34zavvrvp","key":"old"},"had_token":false}',NULL,NULL,'[]','{"run_id":"run_01M83KZ7F6CDTQ6ZE55CDAB5KQ","kind":"approval","name":"charge","arguments":{"query":"round 0"},"question":"","asked_at":1795417939.442421,"expires_at":1796022739.442421,"path":"react/tool:call_7_0/approval","n":1,"asking_agent":"payer"}',1);
INSERT INTO "runs" VALUES(3,'run_01M83KZ731VAXVD7KQ5MBB23GZ','default','key:ycj34zavvrvp','teller','s-1','b6e3c42cb4408160674ae36eb580c0f2','','completed',0,1,'',0,0,1795417939.042019,1795417939.042019,1795417939.054241,0.0,0.0,20,3,0,0.0,0,'{}',NULL,'{}','{"response":"Both are done.","agent":"teller","session_id":"s-1","run_id":"run_01M83KZ731VAXVD7KQ5MBB23GZ","metadata":{"provider":"model","model":"mock+tools=1+say=Both_are_done.","tokens_used":23,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"tools_called":["charge"],"pattern":"react","iterations":2,"stop_reason":"completed","finish_reason":"stop","attempts":[],"latency_ms":12.206,"trace_id":"b6e3c42cb4408160674ae36eb580c0f2","guardrails":[]}}',NULL,'[]',NULL,0);
INSERT INTO "runs" VALUES(4,'run_01M83KZ73G86EB8SY7X4ZG54Q2','default','key:ycj34zavvrvp','teller','s-1','8936f74151ff990c5e7ff0266f0c9890','','completed',0,1,'',0,0,1795417939.056162,1795417939.056162,1795417939.064130,0.0,0.0,20,3,0,0.0,0,'{}',NULL,'{}','{"response":"Both are done.","agent":"teller","session_id":"s-1","run_id":"run_01M83KZ73G86EB8SY7X4ZG54Q2","metadata":{"provider":"model","model":"mock+tools=1+say=Both_are_done.","tokens_used":23,"usage":{"input_tokens":20,"output_tokens":3,"cached_tokens":0,"cost_usd":0.0},"tools_called":["charge"],"pattern":"react","iterations":2,"stop_reason":"completed","finish_reason":"stop","attempts":[],"latency_ms":7.948,"trace_id":"8936f74151ff990c5e7ff0266f0c9890","guardrails":[]}}',NULL,'[]',NULL,0);
INSERT INTO "runs" VALUES(5,'run_01M83KZCR35NFT7AQF336KFYGG','default','key:ycj34zavvrvp','teller','s-3','24f1cc0e30311f16447fbf6ca55a38b0','','running',1,1,'host-16215-c914ea41',0,0,1795417944.835673,1795417944.836088,0.0,1795418064.842448,0.0,0,0,0,0.0,0,'{"query":"Charge.","session_id":"s-3","context":{},"metadata":{},"journal":1}','{"source":"apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: teller}\nspec:\n  model: {primary: {provider: model, model: \"mock+tools=1+say=Both_are_done.\"}}\n  prompts: {system: \"You are {{ agent_name }}.\"}\n  tools: [{name: charge, type: internal, function: \"effects:charge\", effect: write}]\n  memory:\n    conversational: {backend: \"${MEMORY:-sqlite}\"}\n    episodic: {backend: \"${MEMORY:-sqlite}\"}\n    semantic:\n      backend: \"${PASSAGES:-sqlite}\"\n      embeddings: {provider: hashing, dimensions: 16}\n      auto_index: true\n  budgets: {per_principal_daily: {tool_calls: 100}}\n"}','{"user_id":"key:ycj34zavvrvp","tenant_id":"default","roles":[],"scopes":["agents:run","rag:query","rag:write","runs:decide","runs:read","sessions:read","workflows:read","workflows:run"],"metadata":{"key_id":"ycj34zavvrvp","key":"old"},"had_token":false}',NULL,NULL,'[]',NULL,1);
CREATE TABLE schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "schemas" VALUES('budgets',2);
INSERT INTO "schemas" VALUES('conversations',2);
INSERT INTO "schemas" VALUES('episodes',1);
INSERT INTO "schemas" VALUES('keys',1);
INSERT INTO "schemas" VALUES('runs',4);
INSERT INTO "schemas" VALUES('tasks',1);
CREATE TABLE session_leases (
    token INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    session_id TEXT NOT NULL,
    holder TEXT NOT NULL,
    expires_at REAL NOT NULL,
    interrupted INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, agent, session_id)
);
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    agent TEXT NOT NULL,
    session_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    last_seq INTEGER NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    expires_at REAL NOT NULL,
    summary TEXT,
    upto INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, agent, session_id)
);
INSERT INTO "sessions" VALUES(1,'default','teller','s-1','key:ycj34zavvrvp',6,1795417939.053636,1795417939.385079,0.0,NULL,0);
CREATE TABLE task_artifacts (
    task_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    type TEXT NOT NULL,
    path TEXT NOT NULL,
    node TEXT NOT NULL,
    stage TEXT NOT NULL,
    created_at REAL NOT NULL,
    fingerprint TEXT NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (task_id, n)
) WITHOUT ROWID;
INSERT INTO "task_artifacts" VALUES('task_01M83KZ7JSQTX2N9TH1K4C65KR',2000,'output','','take','take',1795417939.547675,'4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d','{"amount":21}');
INSERT INTO "task_artifacts" VALUES('task_01M83KZ7JSQTX2N9TH1K4C65KR',3000,'output','','double','double',1795417939.558636,'4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d','{"amount":42}');
INSERT INTO "task_artifacts" VALUES('task_01M83KZ7JSQTX2N9TH1K4C65KR',4000,'output','','done','done',1795417939.558959,'4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d','{"amount":42}');
INSERT INTO "task_artifacts" VALUES('task_01M83KZ7JSQTX2N9TH1K4C65KR',5000,'telemetry','','','',1795417939.559212,'4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d','{"status":"success","queued_ms":1.64,"path":["take","double","done"],"usage":{"input_tokens":0,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"latency_ms":11.659,"trace_id":"30a8272b9d86363425136909c26efe12","run_fingerprint":"4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d","stages":[{"task":"","stage":"take","status":"success","duration_ms":0.071},{"task":"","stage":"double","status":"success","duration_ms":4.697},{"task":"","stage":"done","status":"success","duration_ms":0.039}]}');
CREATE TABLE task_records (
    task_id TEXT NOT NULL,
    n INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (task_id, n)
) WITHOUT ROWID;
INSERT INTO "task_records" VALUES('task_01M83KZ7JSQTX2N9TH1K4C65KR',1,'{"type":"begin","task_id":"task_01M83KZ7JSQTX2N9TH1K4C65KR","workflow":"double","start":"take","input":{"amount":21}}');
INSERT INTO "task_records" VALUES('task_01M83KZ7JSQTX2N9TH1K4C65KR',2,'{"type":"stage","entry":{"seq":0,"task":"","stage_id":"take","node_id":"take","status":"success","input":{"amount":21},"output":{"amount":21},"error":null,"edge":"","tool_calls":[],"context_hash":"","context_items":[],"schema_in":"","schema_out":"","usage":null,"started_at":1795417939.5476043,"finished_at":1795417939.5476751}}');
INSERT INTO "task_records" VALUES('task_01M83KZ7JSQTX2N9TH1K4C65KR',3,'{"type":"stage","entry":{"seq":0,"task":"","stage_id":"double","node_id":"double","status":"success","input":{"amount":21},"output":{"amount":42},"error":null,"edge":"","tool_calls":[],"context_hash":"","context_items":[],"schema_in":"","schema_out":"","usage":null,"started_at":1795417939.5539393,"finished_at":1795417939.5586364}}');
INSERT INTO "task_records" VALUES('task_01M83KZ7JSQTX2N9TH1K4C65KR',4,'{"type":"stage","entry":{"seq":0,"task":"","stage_id":"done","node_id":"done","status":"success","input":{"amount":42},"output":{"amount":42},"error":null,"edge":"","tool_calls":[],"context_hash":"","context_items":[],"schema_in":"","schema_out":"","usage":null,"started_at":1795417939.55892,"finished_at":1795417939.5589585}}');
INSERT INTO "task_records" VALUES('task_01M83KZ7JSQTX2N9TH1K4C65KR',5,'{"type":"end","status":"success","error":null,"at":1795417939.5591996}');
CREATE TABLE tasks (
    task_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    workflow TEXT NOT NULL,
    start_node TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at REAL NOT NULL,
    fingerprint TEXT NOT NULL,
    trace_id TEXT NOT NULL,
    durable INTEGER NOT NULL,
    caller TEXT NOT NULL,
    metadata TEXT NOT NULL,
    worker TEXT NOT NULL,
    lease_until REAL NOT NULL,
    cancelling INTEGER NOT NULL,
    finished_at REAL NOT NULL,
    result TEXT
) WITHOUT ROWID;
INSERT INTO "tasks" VALUES('task_01M83KZ7JSQTX2N9TH1K4C65KR','default','key:ycj34zavvrvp','double','take','success',1795417939.545964,'4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d','30a8272b9d86363425136909c26efe12',1,'{"user_id":"key:ycj34zavvrvp","tenant_id":"default","roles":[],"scopes":["agents:run","rag:query","rag:write","runs:decide","runs:read","sessions:read","workflows:read","workflows:run"],"metadata":{"key_id":"ycj34zavvrvp","key":"old"},"had_token":false}','{}','',0.0,0,1795417939.559214,'{"output":{"amount":42},"error":null,"metadata":{"path":["take","double","done"],"usage":{"input_tokens":0,"output_tokens":0,"cached_tokens":0,"cost_usd":0.0},"latency_ms":11.659,"trace_id":"30a8272b9d86363425136909c26efe12","run_fingerprint":"4503d179195475a4678e4a629ea20bba6209b0b95e14e5252bcc08228b166b1d"}}');
CREATE TABLE turns (
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    created_at REAL NOT NULL,
    run_id TEXT NOT NULL,
    status TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;
INSERT INTO "turns" VALUES(1,1,'user','What is owed?',1795417939.054,'run_01M83KZ731VAXVD7KQ5MBB23GZ','complete',0);
INSERT INTO "turns" VALUES(1,2,'assistant','Both are done.',1795417939.054,'run_01M83KZ731VAXVD7KQ5MBB23GZ','complete',0);
INSERT INTO "turns" VALUES(1,3,'user','Charge it.',1795417939.064,'run_01M83KZ73G86EB8SY7X4ZG54Q2','complete',0);
INSERT INTO "turns" VALUES(1,4,'assistant','Both are done.',1795417939.064,'run_01M83KZ73G86EB8SY7X4ZG54Q2','complete',0);
INSERT INTO "turns" VALUES(1,5,'user','Charge it again.',1795417939.385,'run_01M83KZ7D6XXM4YP3DE79RC0P9','complete',0);
INSERT INTO "turns" VALUES(1,6,'assistant','Both are done. ',1795417939.385,'run_01M83KZ7D6XXM4YP3DE79RC0P9','complete',0);
CREATE TABLE workers (worker TEXT PRIMARY KEY, seen_at REAL NOT NULL) WITHOUT ROWID;
INSERT INTO "workers" VALUES('host-16215-c914ea41',1795417944.836610);
CREATE INDEX sessions_by_owner ON sessions (tenant, owner, agent, session_id);
CREATE INDEX sessions_by_expiry ON sessions (expires_at) WHERE expires_at > 0;
CREATE TRIGGER sessions_take_their_turns AFTER DELETE ON sessions
BEGIN
    DELETE FROM turns WHERE session = OLD.id;
END;
CREATE INDEX events_by_session ON events (tenant, agent, session_id, id);
CREATE INDEX events_by_owner ON events (tenant, owner);
CREATE INDEX events_by_expiry ON events (expires_at) WHERE expires_at > 0;
CREATE INDEX runs_by_owner ON runs (tenant, owner, id);
CREATE INDEX runs_by_session ON runs (tenant, agent, session_id, id);
CREATE INDEX runs_ended ON runs (finished_at) WHERE finished_at > 0;
CREATE INDEX runs_by_trace ON runs (trace_id);
CREATE INDEX keys_by_expiry ON idempotency_keys (expires_at);
CREATE TRIGGER runs_take_their_log AFTER DELETE ON runs
BEGIN
    DELETE FROM run_steps WHERE run_id = OLD.run_id;
    DELETE FROM run_events WHERE run_id = OLD.run_id;
    DELETE FROM run_traces WHERE run_id = OLD.run_id;
END;
CREATE INDEX runs_plain_open ON runs (worker) WHERE durable = 0 AND status = 'running';
CREATE INDEX keys_by_run ON idempotency_keys (run_id);
CREATE INDEX runs_in_order ON runs (tenant, agent, session_id, id)
WHERE ordered = 1 AND status IN ('queued', 'running');
CREATE INDEX runs_open ON runs (status, worker) WHERE durable = 1 AND status IN ('queued', 'running', 'waiting');
CREATE INDEX tasks_of_owners ON tasks (tenant, owner, created_at);
CREATE INDEX tasks_that_run ON tasks (created_at) WHERE finished_at = 0;
CREATE INDEX tasks_that_ended ON tasks (finished_at) WHERE finished_at > 0;
CREATE INDEX artifacts_of_nodes ON task_artifacts (node, created_at);
CREATE INDEX budgets_by_expiry ON budget_accounts (expires_at);
CREATE INDEX holds_by_account ON budget_holds (tenant, agent, name);
CREATE INDEX holds_by_holder ON budget_holds (holder);
DELETE FROM "sqlite_sequence";
COMMIT;
