wrk.method = "POST"
wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"
local n = 0
local run = os.time() -- a session of its own for every request, also across runs of wrk
request = function()
  n = n + 1
  return wrk.format(nil, nil, nil, "message=How+do+I+reset+my+password%3F&stream=false&session_id=s-" .. run .. "-" .. n)
end
